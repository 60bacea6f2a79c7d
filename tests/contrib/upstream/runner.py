"""Runs Django's tests, save those of what our backend does otherwise."""

from __future__ import annotations

import sys
import unittest

from older_python import OlderPython

_CAN = "ours can, and Django's cannot"
_IN_MEMORY = "it changes what is in the memory of Django's backend"
_SYNC = "it calls a sync method on the event loop, which Django's ORM refuses"
_PYTHON = "the message is Python 3.12's"
NOT_OURS = {
    "ImmediateBackendTestCase.test_cannot_get_result": _CAN,
    "ImmediateBackendTestCase.test_cannot_refresh_result": _CAN,
    "ImmediateBackendTestCase.test_cannot_pass_run_after": _CAN,
    "DummyBackendTestCase.test_refresh_result": _IN_MEMORY,
    "DummyBackendTestCase.test_refresh_result_async": _IN_MEMORY,
    "DummyBackendTestCase.test_enqueue_task_async": _SYNC,
    "DummyBackendTestCase.test_get_missing_result": _SYNC,
    "TaskTestCase.test_enqueue_task_async": _SYNC,
    "TaskTestCase.test_get_missing_result": _SYNC,
    "TaskTestCase.test_refresh_result": _SYNC,
}
if sys.version_info < (3, 12):
    NOT_OURS["CustomBackendTestCase.test_no_enqueue"] = _PYTHON


class Runner(OlderPython):
    """Skips the listed tests, with the reason."""

    def build_suite(self, *args, **kwargs):
        """Find the tests, and mark those that are not ours."""
        suite = super().build_suite(*args, **kwargs)
        found = set()
        for test in suite:
            name = test.id().partition(".")[2].partition(".")[2]
            found.add(name)
            if name in NOT_OURS:
                function = getattr(type(test), test._testMethodName)
                setattr(type(test), test._testMethodName, unittest.skip(NOT_OURS[name])(function))
        gone = NOT_OURS.keys() - found
        assert not gone, f"Django has no tests of these names any more: {sorted(gone)}"
        return suite
