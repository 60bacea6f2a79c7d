"""A worker of a Django application: its models can be imported, and a lost connection costs one job at most."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.calls import enqueue, job
from tests.databases import Database
from tests.facts import wait_until
from tests.worker.conftest import Start

pytest.importorskip("django")


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Path:
    """A Django project in the directory of the worker: settings, an application with a model, and tasks."""
    parts = conninfo_to_dict(database.dsn)
    given: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql",
        "CONN_MAX_AGE": None,
        **{name.upper(): parts.get(key, "") for name, key in NAMES.items()},
    }
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "settings.py").write_text(
        f"SECRET_KEY = 'x'\nUSE_TZ = True\nINSTALLED_APPS = ['shop']\nDATABASES = {{'default': {given!r}}}\n"
        "DEFAULT_AUTO_FIELD = 'django.db.models.BigAutoField'\n"
    )
    (package / "models.py").write_text(
        "from django.db import models\n\n\nclass Order(models.Model):\n    email = models.TextField()\n"
    )
    (package / "tasks.py").write_text(
        textwrap.dedent(
            """
            from django.db import connection, transaction
            from pgqueue import App
            from shop.models import Order

            app = App()

            @app.task(max_attempts=1, store_result=True)
            def write(email):
                with transaction.atomic():
                    Order.objects.create(email=email)
                return connection.connection.info.backend_pid

            @app.task(max_attempts=1, store_result=True)
            async def awrite(email):
                await Order.objects.acreate(email=email)
                from asgiref.sync import sync_to_async
                return await sync_to_async(lambda: connection.connection.info.backend_pid)()
            """
        )
    )
    database.connect().execute("create table shop_order (id bigserial primary key, email text)")
    return tmp_path


NAMES = {"name": "dbname", "host": "host", "port": "port", "user": "user", "password": "password"}


def ended(conn: psycopg.Connection, job_id: int) -> Any:
    wait_until(lambda: job(conn, job_id).finished_at is not None, timeout=30)
    return job(conn, job_id)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("task", ["write", "awrite"])
def test_a_lost_connection_costs_no_later_job(task: str, conn: psycopg.Connection, start_worker: Start) -> None:
    start_worker("-r", "shop.tasks", "-c", "1", DJANGO_SETTINGS_MODULE="shop.settings").started()
    first, second = (ended(conn, enqueue(conn, task, {"email": "a@b.c"})) for _ in range(2))
    assert (first.state, second.state) == ("succeeded", "succeeded")
    assert first.result == second.result
    conn.execute("select pg_terminate_backend(%s, 5000)", [second.result])
    # Django finds out by an error, unless CONN_HEALTH_CHECKS are on.
    found_out = ended(conn, enqueue(conn, task, {"email": "a@b.c"}))
    assert found_out.errors[0]["class"] == "django.db.utils.OperationalError"
    later = [ended(conn, enqueue(conn, task, {"email": "a@b.c"})).state for _ in range(3)]
    assert later == ["succeeded"] * 3


def test_connections_that_are_too_old_are_closed_after_the_job(
    shop: Path, conn: psycopg.Connection, start_worker: Start
) -> None:
    settings = shop / "shop" / "settings.py"
    settings.write_text(settings.read_text().replace("'CONN_MAX_AGE': None", "'CONN_MAX_AGE': 0"))
    start_worker("-r", "shop.tasks", DJANGO_SETTINGS_MODULE="shop.settings").started()
    done = ended(conn, enqueue(conn, "write", {"email": "a@b.c"}))
    alive = "select count(*) from pg_stat_activity where pid = %s"
    wait_until(lambda: conn.execute(alive, [done.result]).fetchone() == (0,))


def test_a_module_that_configures_django_itself_gets_the_same(
    shop: Path, conn: psycopg.Connection, start_worker: Start
) -> None:
    (shop / "alone.py").write_text(
        "import os, django\nos.environ['DJANGO_SETTINGS_MODULE'] = 'shop.settings'\ndjango.setup()\n"
        "from shop.tasks import app\n"
    )
    start_worker("-r", "alone", "-c", "1").started()
    first = ended(conn, enqueue(conn, "write", {"email": "a@b.c"}))
    conn.execute("select pg_terminate_backend(%s, 5000)", [first.result])
    ended(conn, enqueue(conn, "write", {"email": "d@e.f"}))
    assert ended(conn, enqueue(conn, "write", {"email": "g@h.i"})).state == "succeeded"


@pytest.mark.usefixtures("shop")
def test_settings_that_cannot_be_read_are_shown_with_their_line(start_worker: Start) -> None:
    worker = start_worker("-r", "shop.tasks", DJANGO_SETTINGS_MODULE="shop.setings")
    assert worker.wait() == 2
    assert "Django cannot be set up with DJANGO_SETTINGS_MODULE=shop.setings: " in worker.log()
    assert "No module named 'shop.setings'" in worker.log()
