"""Where the database is, and how a worker is to behave."""

from __future__ import annotations

import re

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgqueue.config import WorkerConfig, describe_dsn, find_dsn, worker_dsn, writing_dsn
from pgqueue.errors import ConfigError

EVERYWHERE = {"PGQUEUE_DSN": "dbname=a", "DATABASE_URL": "dbname=b", "PGHOST": "c"}


def test_the_first_place_that_names_a_database_wins() -> None:
    assert find_dsn("dbname=given", EVERYWHERE) == "dbname=given"
    assert find_dsn(None, EVERYWHERE) == "dbname=a"
    assert find_dsn(None, {**EVERYWHERE, "PGQUEUE_DSN": ""}) == "dbname=b"
    assert find_dsn(None, {"PGHOST": "c"}) == ""


@pytest.mark.parametrize("name", ["PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE", "PGPORT", "PGUSER"])
def test_each_libpq_variable_that_says_where_counts(name: str) -> None:
    assert find_dsn(None, {name: "x"}) == ""
    assert find_dsn(None, {name: ""}) is None


def test_nothing_anywhere_is_none() -> None:
    assert find_dsn(None, {}) is None
    assert find_dsn(None, {"PGPASSWORD": "x", "PGSSLMODE": "require", "PATH": "/bin"}) is None


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgresql+asyncpg", "postgres+psycopg2", "postgresql"])
def test_the_drivers_name_of_sqlalchemy_is_taken_off(scheme: str) -> None:
    found = find_dsn(None, {"DATABASE_URL": f"{scheme}://u:p@h:1/d"})
    assert conninfo_to_dict(found or "") == {"user": "u", "password": "p", "host": "h", "port": "1", "dbname": "d"}


@pytest.mark.parametrize("source", ["--dsn", "PGQUEUE_DSN", "DATABASE_URL"])
def test_a_wrong_dsn_is_named_by_its_source_and_without_its_password(source: str) -> None:
    wrong = "mysql://me:secret@h/d"
    with pytest.raises(ConfigError, match=f"^{source} is not a PostgreSQL DSN") as error:
        find_dsn(wrong) if source == "--dsn" else find_dsn(None, {source: wrong})
    assert "secret" not in str(error.value)


def test_a_worker_adds_what_its_connections_need_and_leaves_alone_what_is_said() -> None:
    plain = conninfo_to_dict(worker_dsn("host=h", "n" * 100, environ={}))
    assert plain == {
        "host": "h",
        "client_encoding": "UTF8",
        "application_name": "n" * 63,
        "connect_timeout": "5",
        "target_session_attrs": "read-write",
        "keepalives": "1",
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": "20000",
    }
    said = "postgresql://h/?application_name=mine&connect_timeout=3&target_session_attrs=any&keepalives_idle=60"
    found = conninfo_to_dict(worker_dsn(said, "other"))
    assert found == {**plain, **conninfo_to_dict(said)}
    by_variables = conninfo_to_dict(
        worker_dsn("host=h", "n", environ={"PGCONNECT_TIMEOUT": "7", "PGTARGETSESSIONATTRS": "any", "PGAPPNAME": "x"})
    )
    assert not {"connect_timeout", "target_session_attrs", "application_name"} & set(by_variables)


@pytest.mark.parametrize(
    ("dsn", "environ", "wanted"),
    [
        ("host=a,b", {}, "read-write"),
        ("", {"PGHOST": "a,b"}, "read-write"),
        ("host=a", {}, None),
        ("host=a", {"PGHOST": "a,b"}, None),
        ("host=a,b target_session_attrs=any", {}, "any"),
        ("host=a,b", {"PGTARGETSESSIONATTRS": "any"}, None),
    ],
)
def test_of_several_hosts_a_migration_wants_the_one_that_takes_writes(
    dsn: str, environ: dict[str, str], wanted: str | None
) -> None:
    assert conninfo_to_dict(writing_dsn(dsn, "n", environ)).get("target_session_attrs") == wanted


@pytest.mark.parametrize(("lease", "timeout"), [(1.0, "2"), (30.0, "5"), (3600.0, "10")])
def test_connecting_may_take_a_part_of_the_lease(lease: float, timeout: str) -> None:
    assert conninfo_to_dict(worker_dsn("", "n", lease, {}))["connect_timeout"] == timeout


@pytest.mark.parametrize(
    "wrong",
    [
        "host=h password=top secret",
        "host=h password='top secret",
        "postgresql://me:top/secret@h/d",
        "postgresql://me:1/top@secret@h/d",
        "postgresql://me@h/d?password=secret&nonsense=1",
    ],
)
def test_a_dsn_whose_password_makes_it_unreadable_is_refused_without_a_part_of_it(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"^--dsn ") as error:
        find_dsn(wrong)
    assert "secret" not in str(error.value)
    assert "top" not in str(error.value)


def test_a_worker_behind_a_pooler_leaves_nothing_in_sessions() -> None:
    assert not WorkerConfig().pooled
    assert WorkerConfig(listen=False).pooled
    assert WorkerConfig(listen_dsn="host=h").pooled
    assert WorkerConfig(prepare=False).pooled
    assert not WorkerConfig(prepare=True, listen=False).pooled


def test_a_listen_dsn_is_checked_and_never_shown() -> None:
    assert "secret" not in repr(WorkerConfig(listen_dsn="postgresql+psycopg://me:secret@h/d"))
    with pytest.raises(ConfigError, match=r"^--listen-dsn is not a PostgreSQL DSN"):
        WorkerConfig(listen_dsn="mysql://h/d")


def test_a_dsn_is_described_without_its_password() -> None:
    assert describe_dsn("postgresql://me:secret@h:5433/app") == "app on h"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("concurrency", 0),
        ("concurrency", 10_001),
        ("lease", 0.5),
        ("lease", float("nan")),
        ("lease", float("inf")),
        ("poll_interval", 0.0),
        ("poll_interval", 3601.0),
        ("shutdown_timeout", -1.0),
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_range(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{setting.replace('_', '-')} is .*give a value between"):
        WorkerConfig(**{setting: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        # As from a variable of the environment.
        ("concurrency", "10", "concurrency is '10'; give a whole number between 1 and 10000"),
        ("concurrency", 2.5, "concurrency is 2.5; give a whole number"),
        ("concurrency", None, "concurrency is None; give a whole number"),
        ("min_concurrency", 0.5, "min-concurrency is 0.5; give a whole number between 1 and 20"),
        ("lease", "30 s", "lease is '30 s'; give a number between 1 and 86400"),
        ("shutdown_timeout", None, "shutdown-timeout is None; give a number"),
        ("queues", "mail", "queues is 'mail'; give a list of names"),
        ("keep_log", "app", "keep_log is 'app'; give a list of names"),
    ],
)
def test_a_setting_of_another_type_is_refused_by_its_name(setting: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(says)}"):
        WorkerConfig(**{setting: value})  # type: ignore[arg-type]


def test_every_worker_has_a_name_of_its_own() -> None:
    assert WorkerConfig().name != WorkerConfig().name
