"""Behind PgBouncer in transaction mode, where every transaction may run in another session."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

import pgqueue
from pgqueue import App, Job, cli
from pgqueue.config import WorkerConfig
from pgqueue.errors import ConfigError
from pgqueue.worker import Worker
from tests.calls import call, enqueue, enqueue_many, job, value
from tests.databases import Cloner, Database, uri
from tests.facts import wait_until, wait_until_async
from tests.proxy import Proxy
from tests.worker.conftest import Start
from tests.workers import NEVER, done, working, write_module

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

pytestmark = [pytest.mark.long, pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")]

# PgBouncer does not run as root.
NOBODY = 65534


class PgBouncer:
    """A PgBouncer of the test's own before the test's server. `dsn` is the test's database through it."""

    def __init__(self, database: Database, **settings: object) -> None:
        # Between them, because only our user may use the embedded server's socket.
        self._proxy = Proxy(database.dsn)
        self._directory = Path(tempfile.mkdtemp(prefix="pgqueue-pgbouncer-"))
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        upstream = conninfo_to_dict(self._proxy.dsn)
        target = " ".join(
            f"{name}={upstream[name]}" for name in ("host", "port", "user", "password") if name in upstream
        )
        chosen = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            # In turn: the next transaction of a client nearly always meets another session.
            "server_round_robin": 1,
            "default_pool_size": 4,
            **settings,
        }
        lines = [f"{name} = {setting}" for name, setting in chosen.items()]
        self._config = self._directory / "pgbouncer.ini"
        self._config.write_text("\n".join(["[databases]", f"* = {target}", "[pgbouncer]", *lines]) + "\n")
        self._log = self._directory / "log"
        self._log.touch()
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._as = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            for path in (self._directory, self._config, self._log):
                os.chown(path, NOBODY, NOBODY)
        self.dsn = uri(database.dsn, host="127.0.0.1", port=str(port))
        self.start()

    def start(self) -> None:
        assert PROGRAM is not None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([PROGRAM, str(self._config)], stdout=log, stderr=log, **self._as)
        # It asks a server that has refused it again only after `server_login_retry`, 15 s.
        wait_until(self._answers, timeout=60)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn, autocommit=True, prepare_threshold=None)

    def close(self) -> None:
        self.stop()
        self._proxy.close()
        shutil.rmtree(self._directory)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def pgbouncer(database: Database, **settings: object) -> Iterator[PgBouncer]:
    """Run a PgBouncer with settings of its own."""
    running = PgBouncer(database, **settings)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def pooler(database: Database) -> Iterator[PgBouncer]:
    with pgbouncer(database) as running:
        yield running


@pytest.fixture
def producer(pooler: PgBouncer) -> Iterator[psycopg.Connection]:
    """A connection through the pooler."""
    with pooler.connect() as connection:
        yield connection


@asynccontextmanager
async def busy_neighbours(pooler: PgBouncer) -> AsyncIterator[None]:
    """Other clients of the pooler, so that the sessions behind it change hands."""

    async def ask_forever() -> None:
        async with await psycopg.AsyncConnection.connect(pooler.dsn, autocommit=True, prepare_threshold=None) as each:
            while True:
                await each.execute("select pg_sleep(0.002)")

    asking = [asyncio.create_task(ask_forever()) for _ in range(2)]
    try:
        yield
    finally:
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


def sleeps_soundly(conn: psycopg.Connection) -> bool:
    """Whether some worker registered as idle for NEVER so long ago that its polls after that, of a second, are over."""
    return bool(
        value(
            conn,
            "select exists (select from pgqueue.idle_workers"
            " where until < clock_timestamp() + make_interval(secs => %s) and until > clock_timestamp())",
            NEVER - 0.5,
        )
    )


async def test_without_listen_everything_works_and_nothing_is_left_in_a_session(
    pooler: PgBouncer, producer: psycopg.Connection, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    ran: Counter[str] = Counter()
    go = asyncio.Event()

    @app.task
    async def t(i: int) -> None:
        ran["t"] += 1

    @app.task(retry_policy="fixed", retry_delay="0.1 s", retry_jitter=0)
    async def second_time(job: Job) -> None:
        ran["second_time"] += 1
        if job.attempt == 1:
            raise RuntimeError("first")

    @app.task
    async def longer_than_a_lease() -> None:
        ran["longer_than_a_lease"] += 1
        await go.wait()

    @app.schedule(every="1 s")
    @app.task
    async def pulse() -> None:
        ran["pulse"] += 1

    def enqueue_in_order() -> list[int]:
        return [enqueue(producer, "t", {"i": i}, key="one") for i in range(10)]

    def what_is_left() -> Counter[tuple[Any, ...]]:
        return Counter(
            (
                value(producer, "select count(*) from pg_prepared_statements"),
                value(producer, "select count(*) from pg_listening_channels()"),
                value(producer, "select coalesce(current_setting('pgqueue.woken', true), '')"),
                value(producer, "select current_setting('lock_timeout')"),
                value(producer, "select current_setting('statement_timeout')"),
            )
            for _ in range(40)
        )

    with caplog.at_level(logging.WARNING, "pgqueue"):
        async with (
            busy_neighbours(pooler),
            working(app, pooler.dsn, name="w", listen=False, poll_interval=0.05, lease=6, concurrency=10),
        ):
            long = enqueue(producer, "longer_than_a_lease")
            twice = enqueue(producer, "second_time")
            cancelled = enqueue(producer, "t", delay="1 hour")
            assert call(producer, "cancel", cancelled) == "cancelled"
            many = enqueue_many(producer, 300)
            # Many statements in threads: the worker's loop is not to be blocked by its test, of which it would warn.
            in_order = await asyncio.to_thread(enqueue_in_order)
            # In the transaction of a caller, by the package's own function.
            with producer.transaction():
                with_others = pgqueue.enqueue(producer, "t", {"i": 0})
                call(producer, "stats")
            assert set(await done(conn, *many, *in_order, twice, with_others)) == {"succeeded"}
            # Maintenance runs schedules.
            await wait_until_async(lambda: ran["pulse"] >= 2)
            reserved_until = value(conn, "select lease_expires_at from pgqueue.jobs where id = %s", long)
            await wait_until_async(
                lambda: value(conn, "select lease_expires_at from pgqueue.jobs where id = %s", long) > reserved_until
            )
            left = await asyncio.to_thread(what_is_left)
            go.set()
            assert await done(conn, long) == ["succeeded"]
            assert list(left) == [(0, 0, "", "0", "0")]
            assert (
                value(
                    conn,
                    "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid"
                    " from pg_database where datname = current_database()) and pid <> pg_backend_pid()",
                )
                <= 1  # maintain, in its own transaction
            )
    assert ran["longer_than_a_lease"] == 1
    assert ran["second_time"] == 2
    assert ran["t"] == 311
    assert job(conn, long).attempts == 1
    assert [each.getMessage() for each in caplog.records if "second_time" not in each.getMessage()] == []


@pytest.mark.covers("D1")
async def test_with_a_listen_dsn_it_sleeps_and_is_woken(
    database: Database, pooler: PgBouncer, producer: psycopg.Connection, conn: psycopg.Connection
) -> None:
    app = App()
    started = asyncio.Event()

    @app.task
    async def t() -> None: ...

    @app.task
    async def waits() -> None:
        started.set()
        await asyncio.sleep(60)

    async with working(app, pooler.dsn, listen_dsn=database.dsn, name="w", poll_interval=NEVER, lease=600.0):
        for _ in range(3):
            await wait_until_async(lambda: sleeps_soundly(conn))
            assert await done(conn, enqueue(producer)) == ["succeeded"]
        # A request to cancel comes the same way, long before the next extension.
        waiting = enqueue(producer, "waits")
        await wait_until_async(started.is_set)
        assert call(producer, "cancel", waiting) == "requested"
        assert await done(conn, waiting) == ["cancelled"]


async def test_a_listen_dsn_of_another_database_is_refused_at_the_start(
    pooler: PgBouncer, cloner: Cloner, conn: psycopg.Connection
) -> None:
    other = cloner.migrated()
    try:
        worker = Worker(App(), pooler.dsn, WorkerConfig(listen_dsn=other.dsn))
        with pytest.raises(ConfigError, match=f"do not arrive in {other.name} on .*--listen-dsn"):
            await worker.run()
        # It has said goodbye.
        assert value(conn, "select count(*) from pgqueue.workers") == 0
    finally:
        cloner.drop(other)


def test_a_listen_dsn_that_leads_to_a_pooler_ends_the_command_with_exit_code_2(
    pooler: PgBouncer, tmp_path: Path, start_worker: Start
) -> None:
    write_module(tmp_path, "import pgqueue\napp = pgqueue.App()")
    worker = start_worker("-r", "jobs", dsn=pooler.dsn, PGQUEUE_LISTEN_DSN=pooler.dsn)
    assert worker.wait() == 2
    assert "leads to a pooler" in worker.log()
    assert "Traceback" not in worker.log()


# A pooler that refuses what it does not know, and one that is set to ignore it.
@pytest.mark.covers("A10")
@pytest.mark.parametrize(
    ("settings", "why"), [({}, "leads to a pooler"), ({"ignore_startup_parameters": "options"}, "do not arrive")]
)
def test_a_worker_detects_a_pooler_logs_it_and_works(
    settings: dict[str, str],
    why: str,
    database: Database,
    conn: psycopg.Connection,
    tmp_path: Path,
    start_worker: Start,
) -> None:
    write_module(
        tmp_path,
        """
        from pgqueue import App

        app = App()

        @app.task
        async def t(i: int): ...
        """,
    )
    with pgbouncer(database, **settings) as pooler, pooler.connect() as producer:
        worker = start_worker("-r", "jobs", "--poll-interval", "0.2", dsn=pooler.dsn).started()
        for _ in range(10):
            jobs = enqueue_many(producer, 20)
            wait_until(
                lambda jobs=jobs: (  # type: ignore[misc]
                    value(conn, "select count(*) from pgqueue.history where id = any(%s)", jobs) == 20
                )
            )
        wait_until(lambda: why in worker.log())
        assert "is behind a pooler: continuing as with --no-prepare" in worker.log()
        assert "Traceback" not in worker.log()
        assert {
            (value(producer, "show statement_timeout"), value(producer, "show default_transaction_isolation"))
            for _ in range(20)
        } == {("0", "read committed")}
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0


async def test_transactions_of_handlers_prepare_nothing_behind_a_pooler_that_the_worker_found_by_itself(
    pooler: PgBouncer, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task(store_result=True, max_attempts=1)
    def pays(job: Job) -> None:
        with job.transaction() as connection:
            for _ in range(8):
                connection.execute("select count(*) from pg_class where oid < 100")

    @app.task(store_result=True, max_attempts=1)
    async def pays_async(job: Job) -> None:
        async with job.transaction() as connection:
            for _ in range(8):
                await connection.execute("select count(*) from pg_class where oid < 100")

    async with busy_neighbours(pooler), working(app, pooler.dsn, concurrency=4, poll_interval=0.2):
        jobs = [enqueue(conn, task) for task in ("pays", "pays_async") for _ in range(15)]
        assert await done(conn, *jobs, timeout=60) == ["succeeded"] * 30


@pytest.mark.covers("A10")
async def test_a_worker_waits_for_an_exhausted_pool_and_for_a_pooler_that_restarts(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    def told(what: str) -> bool:
        return any(what in each.getMessage() for each in caplog.records)

    with pgbouncer(database, default_pool_size=1) as pooler, caplog.at_level(logging.INFO, "pgqueue"):
        async with working(app, pooler.dsn, name="w", listen=False, poll_interval=0.1, lease=6.0):
            assert await done(conn, enqueue(conn)) == ["succeeded"]
            with pooler.connect() as hog:
                hog.execute("begin")
                hog.execute("select 1")
                job_id = enqueue(conn)
                await wait_until_async(lambda: told("no answer within"), timeout=15)
                assert job(conn, job_id).state == "waiting"
                hog.execute("rollback")
            assert await done(conn, job_id) == ["succeeded"]
            await wait_until_async(lambda: told("answers again after"), timeout=15)
            caplog.clear()
            pooler.stop()
            job_id = enqueue(conn)
            await wait_until_async(lambda: told("trying again until it answers"))
            await asyncio.to_thread(pooler.start)
            assert await done(conn, job_id) == ["succeeded"]
            await wait_until_async(lambda: told("answers again after"))


async def test_a_default_isolation_level_that_cannot_be_set_for_a_session_is_set_for_each_transaction(
    database: Database, conn: psycopg.Connection
) -> None:
    conn.execute(
        sql.SQL("alter database {} set default_transaction_isolation to 'serializable'").format(
            sql.Identifier(database.name)
        )
    )
    app = App()

    @app.task
    async def t(i: int) -> None: ...

    with pgbouncer(database) as pooler, pooler.connect() as producer:
        async with working(app, pooler.dsn, listen=False, poll_interval=0.05):
            assert set(await done(conn, *enqueue_many(producer, 50))) == {"succeeded"}
        assert value(producer, "show default_transaction_isolation") == "serializable"


@pytest.mark.timeout(120)
async def test_the_commands_of_operators_and_of_the_deploy_work_through_a_pooler(
    pooler: PgBouncer, producer: psycopg.Connection
) -> None:
    ids = enqueue_many(producer, 1200)

    def run(*command: str) -> str:
        done = CliRunner().invoke(cli.cli, [*command, "--dsn", pooler.dsn], catch_exceptions=False)
        assert done.exit_code == 0, (command, done.output)
        return done.output

    def run_all() -> None:
        run("migrate")
        run("migrate", "--check")
        run("status")
        run("jobs", "list")
        run("jobs", "explain", str(ids[0]))
        run("doctor", "--fail-on", "never")
        run("metrics")
        run("top", "--once")
        run("enqueue", "t", "{}")
        # In portions, each with the same statement: psycopg would prepare it.
        assert "1201" in run("jobs", "cancel", "--task", "t", "--yes")

    async with busy_neighbours(pooler):
        await asyncio.to_thread(run_all)
    assert value(producer, "select count(*) from pgqueue.jobs") == 0
