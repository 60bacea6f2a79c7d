"""What jobs do after a restore: from a dump, and to a point in time."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import psycopg
import pytest
from typer.testing import CliRunner

from pgqueue import App, Job, cli, embedded
from pgqueue.schema.migrate import migrate
from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, maintain, reserve, reserve_one, state, stats, value
from tests.databases import Cloner, Database
from tests.docs.pages import ROOT
from tests.facts import wait_until
from tests.worker.test_failover import Server
from tests.workers import done, working

pytestmark = [
    pytest.mark.long,
    # It starts servers of its own, from the programs of the extra.
    pytest.mark.skipif(not embedded.available(), reason="the embedded server is not installed"),
]


@pytest.fixture
def restored(cloner: Cloner) -> Iterator[Database]:
    database = cloner.empty()
    yield database
    cloner.drop(database)


def dump(database: Database, directory: Path) -> None:
    command = [embedded.binaries() / "pg_dump", "-Fc", "-f", directory / "dump", "-d", database.dsn]
    subprocess.run(command, check=True, capture_output=True)


def restore(database: Database, directory: Path) -> None:
    command = [embedded.binaries() / "pg_restore", "--exit-on-error", "--no-owner", "-d", database.dsn]
    subprocess.run([*command, directory / "dump"], check=True, capture_output=True)


async def test_after_a_restored_dump_all_that_ran_since_runs_once_more_and_nothing_else(
    database: Database, restored: Database, conn: psycopg.Connection, tmp_path: Path
) -> None:
    ended = enqueue(conn)
    first = reserve_one(conn, "before")
    call(conn, "complete", first.id, first.reservation)
    keyed = enqueue_many(conn, 4, "t", queue="keyed", key="k")
    held = reserve_one(conn, "before", queues=["keyed"])
    waiting = enqueue_many(conn, 3, "t")
    later = enqueue(conn, "t", delay="2 hours")
    deduped = enqueue(conn, "t", dedupe="d")
    maintain(conn)
    dump(database, tmp_path)

    # The world goes on.
    since = reserve_one(conn, "before", queues=["default"])
    call(conn, "complete", since.id, since.reservation)
    call(conn, "complete", held.id, held.reservation)
    unknown = enqueue(conn)

    restore(restored, tmp_path)
    again = restored.connect()
    assert state(again, ended) == "succeeded"
    assert state(again, since.id) == "waiting"
    assert state(again, held.id) == "executing"
    assert state(again, unknown) is None
    # What was claimed after the dump is not known here.
    assert call(again, "complete", since.id, since.reservation) is False
    assert enqueue(again, "t", dedupe="d") == deduped
    ran: list[int] = []
    app = App()

    @app.task
    async def t(job: Job, i: int = 0) -> None:
        ran.append(job.id)

    clock = Clock(restored.connect())
    for _ in range(3):
        clock.advance("1 hour")
        maintain(again)
    async with working(app, restored.dsn):
        await done(again, *keyed, *waiting, later, deduped, timeout=30)
    assert sorted(ran) == sorted([*keyed, *waiting, later, deduped])
    assert [job_id for job_id in ran if job_id in keyed] == keyed
    assert value(again, "select max(attempts) from pgqueue.history") == 1
    assert stats(again).maintenance["hidden"] == 0
    assert stats(again).maintenance["failures"] == {}
    # The claim from before the dump has become another one.
    assert call(again, "complete", held.id, held.reservation) is False


async def test_a_claim_from_before_a_dump_stands_until_its_lease_lapses(
    database: Database, restored: Database, conn: psycopg.Connection, tmp_path: Path
) -> None:
    enqueue(conn)
    held = reserve_one(conn, "before", lease="1 hour")
    dump(database, tmp_path)
    restore(restored, tmp_path)
    again = restored.connect()
    assert reserve(again, 5) == []
    assert call(again, "complete", held.id, held.reservation) is True


async def test_on_a_copy_for_staging_no_job_of_production_runs_and_new_ones_do(
    database: Database,
    restored: Database,
    conn: psycopg.Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enqueue_many(conn, 3, "t")
    enqueue(conn, "t", delay="2 hours")
    failed = enqueue(conn, "t", queue="failing")
    held = reserve_one(conn, "before", queues=["failing"])
    call(conn, "fail", held.id, held.reservation)
    enqueue_many(conn, 2, "t", queue="keyed", key="k")
    executing = reserve_one(conn, "before", queues=["keyed"])
    call(conn, "schedule", "hourly", "@hourly", "t")
    dump(database, tmp_path)
    restore(restored, tmp_path)

    staging = restored.connect()
    page = (ROOT / "docs/operate/backup.md").read_text().split("## Restore production into staging", 1)[1]
    [statement] = re.findall(r"```sql\n(.*?)```", page.split("\n## ", 1)[0], re.S)
    [command] = re.findall(r"```sh\n(.*?)```", page.split("\n## ", 1)[0], re.S)
    staging.execute(statement.encode())
    monkeypatch.setenv("PGQUEUE_DSN", restored.dsn)
    assert CliRunner().invoke(cli.cli, shlex.split(command)[1:]).exit_code == 0

    ran: list[int] = []
    app = App()

    @app.task
    async def t(job: Job, i: int = 0) -> None:
        ran.append(job.id)

    clock = Clock(restored.connect())
    for _ in range(3):
        clock.advance("3 hours")
        maintain(staging)
    new = enqueue(staging, "t", {"i": 1})
    async with working(app, restored.dsn):
        await done(staging, new, executing.id, failed, timeout=30)
    assert ran == [new]
    assert value(staging, "select count(*) from pgqueue.jobs") == 0


class Archiving(Server):
    """A server that archives its log into a directory beside its own."""

    options: ClassVar[dict[str, str]] = {
        **Server.options,
        "wal_level": "replica",
        "archive_mode": "on",
        "archive_command": "cp %p ../../archive/%f",
    }


def test_to_a_point_in_time_the_queue_is_as_of_that_commit() -> None:
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-restore-"))
    archive = directory / "archive"
    archive.mkdir()
    archive.chmod(0o777)
    directory.chmod(0o755)
    try:
        server = Archiving(directory / "a")
        migrate(server.dsn)
        base = directory / "b" / "data"
        base.parent.mkdir(mode=0o700)
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            first = enqueue(conn)
            call(conn, "hello", "web-1")
            subprocess.run(
                [
                    *(embedded.binaries() / "pg_basebackup", "--pgdata", base, "--checkpoint=fast", "--no-sync"),
                    *("--dbname", f"host={server.host} user=postgres"),
                ],
                check=True,
                capture_output=True,
            )
            held = reserve_one(conn)
            call(conn, "complete", held.id, held.reservation)
            second = enqueue(conn)
            target = value(conn, "select clock_timestamp()::text from pg_sleep(0.2)")
            value(conn, "select pg_sleep(0.2)")
            gone = reserve_one(conn)
            call(conn, "complete", gone.id, gone.reservation)
            third = enqueue(conn)
            conn.execute("select pg_switch_wal()")
            wait_until(lambda: value(conn, "select last_archived_wal is not null from pg_stat_archiver"), timeout=30)
            last = value(conn, "select pg_walfile_name(pg_current_wal_lsn() - 16 * 1024 * 1024)")
            wait_until(lambda: (archive / last).exists() or any(archive.iterdir()), timeout=30)
        server.stop()
        with (base / "postgresql.auto.conf").open("a") as settings:
            settings.write(
                f"restore_command = 'cp ../../archive/%f %p'\nrecovery_target_time = '{target}'\n"
                "recovery_target_action = 'promote'\n"
            )
        (base / "recovery.signal").touch()
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            for path in (base, *base.rglob("*")):
                os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
        (base.parent / "users.lock").touch(mode=0o600)
        past = Server(base.parent)
        with psycopg.connect(past.dsn, autocommit=True) as conn:
            wait_until(lambda: not value(conn, "select pg_is_in_recovery()"), timeout=60)
            assert [state(conn, each) for each in (first, second, third)] == ["succeeded", "waiting", None]
            # Its worker gave its last sign of life to another server.
            assert value(conn, "select array_agg(is_alive) from pgqueue.worker_status where worker = 'web-1'") == [
                False
            ]
            assert call(conn, "beat", "web-1") is False
            # What was claimed after the target is unknown; the job runs again, under another reservation.
            assert call(conn, "complete", gone.id, gone.reservation) is False
            again = reserve_one(conn)
            assert again.id == second
            assert call(conn, "complete", again.id, again.reservation) is True
            assert maintain(conn).ran
            assert stats(conn).maintenance["failures"] == {}
    finally:
        for name in ("a", "b"):
            if (directory / name).exists():
                embedded.stop(directory / name)
        shutil.rmtree(directory, ignore_errors=True)
