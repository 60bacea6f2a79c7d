"""Where the database is, and how a worker is to behave."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgqueue import ConfigError
from pgqueue.config import WorkerConfig, describe_dsn, find_dsn, worker_dsn

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


def test_a_worker_names_its_connections_and_leaves_alone_what_is_said() -> None:
    plain = conninfo_to_dict(worker_dsn("host=h", "n" * 100))
    assert (plain["application_name"], plain["connect_timeout"]) == ("n" * 63, "10")
    said = conninfo_to_dict(worker_dsn("postgresql://h/?application_name=mine&connect_timeout=3", "other"))
    assert (said["application_name"], said["connect_timeout"]) == ("mine", "3")


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


def test_every_worker_has_a_name_of_its_own() -> None:
    assert WorkerConfig().name != WorkerConfig().name
