import os

from psycopg.conninfo import conninfo_to_dict

_dsn = conninfo_to_dict(os.environ["SITE_DSN"])
_database = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": _dsn["dbname"],
    "USER": _dsn.get("user", ""),
    "PASSWORD": _dsn.get("password", ""),
    "HOST": _dsn.get("host", ""),
    "PORT": _dsn.get("port", ""),
    "TEST": {"NAME": f"{_dsn['dbname']}_site"},
}
DATABASES = {"default": _database}
if "SITE_SQLITE" in os.environ:
    # What `startproject` writes.
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
TASKS = {"default": {"BACKEND": "pgqueue.contrib.django.Backend", "QUEUES": []}}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "pgqueue.contrib.django",
    "shop",
]
if "SITE_WITHOUT_APP" in os.environ:
    INSTALLED_APPS.remove("pgqueue.contrib.django")
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
TEST_RUNNER = "older_python.OlderPython"
ROOT_URLCONF = "urls"
DEBUG = "SITE_DEBUG" in os.environ
SECRET_KEY = "for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
