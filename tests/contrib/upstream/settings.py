"""A Django project in which Django's own tests of its tasks run. The package `tasks` is Django's tests/tasks."""

import os

from psycopg.conninfo import conninfo_to_dict

_dsn = conninfo_to_dict(os.environ["SITE_DSN"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _dsn["dbname"],
        "USER": _dsn.get("user", ""),
        "PASSWORD": _dsn.get("password", ""),
        "HOST": _dsn.get("host", ""),
        "PORT": _dsn.get("port", ""),
        "TEST": {"NAME": f"{_dsn['dbname']}_upstream"},
    }
}
INSTALLED_APPS = ["pgqueue.contrib.django", "tasks"]
TASKS = {"default": {"BACKEND": "backends.Enqueues", "QUEUES": []}}
TEST_RUNNER = "runner.Runner"
SECRET_KEY = "for tests"
USE_TZ = True
