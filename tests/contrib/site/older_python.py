import sys

from django.test.runner import DiscoverRunner


class OlderPython(DiscoverRunner):
    """Leaves out what unittest cannot before Python 3.12. Django 6.0 is for that, and runs here on Python 3.11 too."""

    def get_test_runner_kwargs(self):
        given = super().get_test_runner_kwargs()
        if sys.version_info < (3, 12):
            given.pop("durations", None)
        return given
