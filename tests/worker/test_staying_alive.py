"""What a network and a server do to a worker's connections: it pauses, connects again, and goes on."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from pgqueue import App, Job
from pgqueue.config import worker_dsn
from pgqueue.db.call import Call
from pgqueue.errors import UnsupportedOption
from pgqueue.worker.link.connection import Link, connect
from pgqueue.worker.link.outage import Outage, Trouble, refused
from tests.calls import enqueue, enqueue_many, job, value
from tests.databases import Database, uri
from tests.facts import wait_until, wait_until_async
from tests.proxy import Proxy
from tests.worker.conftest import Start
from tests.workers import NEVER, done, is_asleep, working, write_module

# Short enough for a frozen connection to be noticed in a test: within a third of it, and half of it for claims.
LEASE = 6.0


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    with Proxy(database.dsn) as proxy:
        yield proxy


def backends(conn: psycopg.Connection, worker: str = "w") -> list[int]:
    rows = conn.execute(
        "select pid from pg_stat_activity where datname = current_database() and application_name = %s order by pid",
        [f"pgqueue {worker}"],
    )
    return [row[0] for row in rows]


def lines(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if what in each.getMessage()]


def passed(seconds: float) -> bool:
    """For `wait_until`: whether so much time has passed since the epoch of `time.monotonic`."""
    return time.monotonic() > seconds


@pytest.mark.covers("D3", "A10")
async def test_each_connection_killed_in_turn_and_then_all_at_once_comes_back(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    async with working(app, database.dsn, name="w", poll_interval=NEVER, lease=LEASE):
        await wait_until_async(lambda: is_asleep(conn, "w"))
        await wait_until_async(lambda: len(backends(conn)) == 4)
        mine = backends(conn)
        for pids in [[pid] for pid in mine] + [None]:
            # None: any worker that is there by then.
            conn.execute(
                "select pg_terminate_backend(pid) from unnest(%s::int[]) pid",
                [backends(conn) if pids is None else pids],
            )
            assert await done(conn, enqueue(conn)) == ["succeeded"]
        # The second one for claims and ends is made when both have something to do.
        await wait_until_async(lambda: enqueue_many(conn, 50) and len(backends(conn)) == 4)
        assert not set(mine) & set(backends(conn))
        await wait_until_async(lambda: is_asleep(conn, "w"))
        assert await done(conn, enqueue(conn)) == ["succeeded"]


@pytest.mark.covers("D3", "A10")
async def test_connections_that_hang_without_a_word_are_left_before_a_lease_lapses(
    database: Database, conn: psycopg.Connection, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    started: list[int] = []
    go = asyncio.Event()

    @app.task
    async def held(job: Job) -> None:
        started.append(job.id)
        await go.wait()

    @app.task
    async def t() -> None: ...

    mine = enqueue(conn, "held")
    with caplog.at_level(logging.INFO, "pgqueue"):
        async with working(app, proxy.dsn, name="w", poll_interval=NEVER, lease=LEASE):
            await wait_until_async(lambda: started)
            await wait_until_async(lambda: is_asleep(conn, "w"))
            proxy.strand()
            stranded_at = time.monotonic()
            # Its wake-up goes to a listener that nothing reaches; it is found by one that reconnects and polls.
            assert await done(conn, enqueue(conn)) == ["succeeded"]
            await wait_until_async(partial(passed, stranded_at + LEASE + 1), timeout=LEASE + 2)
            go.set()
            assert await done(conn, mine) == ["succeeded"]
            await wait_until_async(lambda: lines(caplog, "answers again after"))
    assert started == [mine]
    assert not lines(caplog, "is lost")
    # Each of its three connections may find out by itself.
    assert len(lines(caplog, "trying again until it answers")) <= 3
    assert re.search("no answer within|timeout expired", lines(caplog, "trying again until it answers")[0])


@pytest.mark.covers("D3", "A10")
async def test_a_slow_network_that_drops_everything_now_and_then_loses_no_job(
    database: Database, conn: psycopg.Connection, proxy: Proxy
) -> None:
    app = App()
    ran: Counter[int] = Counter()

    @app.task
    async def t(i: int) -> None:
        await asyncio.sleep(0.002)
        ran[i] += 1

    proxy.delay(0.005)
    jobs = enqueue_many(conn, 600)
    async with working(app, proxy.dsn, name="w", concurrency=10, lease=LEASE):
        for enough in range(50, 600, 100):
            await wait_until_async(lambda enough=enough: len(ran) > enough, timeout=30)  # type: ignore[misc]
            proxy.drop()
        assert set(await done(conn, *jobs, timeout=30)) == {"succeeded"}
    assert set(ran) == set(range(600))
    assert value(conn, "select max(attempts) from pgqueue.history") == 1


async def test_a_reply_of_reserve_that_breaks_off_in_the_middle_costs_its_jobs_neither_an_attempt_nor_a_lease(
    database: Database, conn: psycopg.Connection, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task
    async def marked(i: int) -> None: ...

    with caplog.at_level(logging.WARNING, "pgqueue"):
        async with working(app, proxy.dsn, name="w", lease=600.0):
            await wait_until_async(lambda: is_asleep(conn, "w"))
            proxy.cut_reply_with(b"marked")
            jobs = enqueue_many(conn, 20, "marked")
            assert await done(conn, *jobs) == ["succeeded"] * 20
            assert proxy.cuts == 1
    assert lines(caplog, "that it does not hold")
    assert {job(conn, each).attempts for each in jobs} == {1}


@pytest.mark.long
@pytest.mark.covers("A10")
async def test_without_an_answer_it_neither_spins_nor_floods_its_log(
    database: Database,
    conn: psycopg.Connection,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    monkeypatch.setattr("pgqueue.worker.link.outage._REMIND", 2.0)
    with caplog.at_level(logging.INFO, "pgqueue"):
        async with working(app, proxy.dsn, name="w", poll_interval=0.5, lease=LEASE):
            await wait_until_async(lambda: is_asleep(conn, "w"))
            tried = proxy.attempts
            proxy.refuse()
            proxy.drop()
            # Found by the worker's first poll, when it is back.
            job_id = enqueue(conn)
            began = time.monotonic()
            await wait_until_async(partial(passed, began + 5.5))
            assert len(lines(caplog, "trying again until it answers")) == 1
            assert 1 <= len(lines(caplog, "still cannot use")) <= (time.monotonic() - began) / 2
            assert proxy.attempts == tried
            proxy.accept()
            assert await done(conn, job_id) == ["succeeded"]
            await wait_until_async(lambda: lines(caplog, "answers again after"))
            # Four connections, each of which may have been made just before the last refusal. The second one for claims
            # and ends is made when both have something to do.
            await wait_until_async(lambda: enqueue_many(conn, 50) and len(backends(conn)) == 4)
            assert proxy.attempts - tried <= 8
    assert len(lines(caplog, "answers again after")) == 1


@pytest.mark.long
@pytest.mark.covers("A11")
def test_a_network_that_hangs_cannot_hang_the_shutdown(
    database: Database, conn: psycopg.Connection, proxy: Proxy, tmp_path: Path, start_worker: Start
) -> None:
    write_module(
        tmp_path,
        """
        import asyncio, pathlib
        from pgqueue import App

        app = App()
        here = pathlib.Path(__file__).parent

        @app.task
        async def t():
            (here / "began").touch()
            while not (here / "go").exists():
                await asyncio.sleep(0.01)
            (here / "ended").touch()
        """,
    )
    enqueue(conn)
    dsn = uri(proxy.dsn, password="hunter2")
    # Its handler ends by itself. The worker is ended 10 s after this time, whatever it has said by then.
    worker = start_worker("-r", "jobs", "--shutdown-timeout", "20", dsn=dsn).started()
    wait_until((tmp_path / "began").exists)
    proxy.freeze()
    (tmp_path / "go").touch()
    wait_until((tmp_path / "ended").exists)
    # Its end is under way to the server; an extension, a beat and housekeeping soon are too.
    worker.send(signal.SIGTERM)
    assert worker.wait(60) == 1
    assert "could not be stored" in worker.log()
    assert "hunter2" not in worker.log()
    assert "Traceback" not in worker.log()


@pytest.mark.covers("A10")
async def test_a_worker_waits_while_the_server_only_reads(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first line reports the broken connection, the next ones why there is no other.
    monkeypatch.setattr("pgqueue.worker.link.outage._REMIND", 0.5)
    app = App()

    @app.task
    async def t() -> None: ...

    def set_read_only(to: str) -> None:
        conn.execute(
            sql.SQL("alter database {} set default_transaction_read_only to {}").format(
                sql.Identifier(database.name), sql.SQL(to)
            )
        )

    # The one checks when it connects; the other learns by SQLSTATE 25006, for its check is switched off.
    for attrs in ("read-write", "any"):
        caplog.clear()
        with caplog.at_level(logging.INFO, "pgqueue"):
            async with working(app, uri(database.dsn, target_session_attrs=attrs), name="w", lease=LEASE):
                await wait_until_async(lambda: is_asleep(conn, "w"))
                set_read_only("on")
                conn.execute("select pg_terminate_backend(pid, 5000) from unnest(%s::int[]) pid", [backends(conn)])
                job_id = enqueue(conn)
                await wait_until_async(lambda: lines(caplog, "still cannot use"))
                assert "read-only" in lines(caplog, "still cannot use")[0]
                assert job(conn, job_id).state == "waiting"
                set_read_only("off")
                assert await done(conn, job_id) == ["succeeded"]
                await wait_until_async(lambda: lines(caplog, "answers again after"))


async def test_a_worker_started_on_a_server_that_only_reads_waits_for_another(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    job_id = enqueue(conn)
    setting = sql.SQL("alter database {} set default_transaction_read_only to {}")
    name = sql.Identifier(database.name)
    conn.execute(setting.format(name, sql.SQL("on")))
    for attrs, why in (("read-write", "read-only"), ("any", "in a read-only transaction")):
        caplog.clear()
        with caplog.at_level(logging.INFO, "pgqueue"):
            async with working(app, uri(database.dsn, target_session_attrs=attrs), name="w", wait_for_start=False):
                await wait_until_async(lambda: lines(caplog, "trying again until it answers"))
                assert why in lines(caplog, "trying again until it answers")[0]
                if attrs == "any":
                    conn.execute(setting.format(name, sql.SQL("off")))
                    assert await done(conn, job_id) == ["succeeded"]


@pytest.fixture
def limited(conn: psycopg.Connection, database: Database) -> Iterator[str]:
    """A role with the rights of a worker and a connection limit of 0."""
    if not value(conn, "select rolsuper from pg_roles where rolname = current_user"):
        pytest.skip("only a superuser can make the role that this needs")
    role = f"{database.name}_limited"
    name = sql.Identifier(role)
    conn.execute(sql.SQL("create role {} login connection limit 0").format(name))
    conn.execute("select pgqueue.grant_access('worker', %s)", [role])
    yield role
    conn.execute(sql.SQL("drop owned by {}").format(name))
    conn.execute(sql.SQL("drop role {}").format(name))


@pytest.mark.covers("A10")
async def test_a_worker_waits_for_connections_when_there_are_none_left(
    database: Database, conn: psycopg.Connection, limited: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    def allow(connections: int) -> None:
        conn.execute(
            sql.SQL("alter role {} connection limit {}").format(sql.Identifier(limited), sql.Literal(connections))
        )

    job_id = enqueue(conn)
    with caplog.at_level(logging.INFO, "pgqueue"):
        async with working(
            app, uri(database.dsn, user=limited), name="w", poll_interval=0.2, lease=LEASE, wait_for_start=False
        ):
            await wait_until_async(lambda: lines(caplog, "too many connections for role"))
            # Enough for claims and ends, which the worker needs to start; the others wait.
            allow(2)
            assert await done(conn, job_id) == ["succeeded"]
            kept = backends(conn)
            assert len(kept) == 2
            # It does not give them up for those that it cannot get.
            for _ in range(5):
                await asyncio.sleep(0.1)
                assert await done(conn, enqueue(conn)) == ["succeeded"]
            assert backends(conn) == kept
            allow(10)
            await wait_until_async(lambda: len(backends(conn)) == 4, timeout=20)
            # One line an outage, not one an attempt.
            trying, again = "trying again until it answers", "answers again after"
            await wait_until_async(lambda: len(lines(caplog, trying)) == len(lines(caplog, again)))
            assert await done(conn, enqueue(conn)) == ["succeeded"]


async def test_a_call_that_waits_too_long_is_given_up_on_both_sides(
    database: Database, conn: psycopg.Connection
) -> None:
    holder = database.session()
    holder.run("begin")
    holder.run("lock table pgqueue.workers in access exclusive mode")
    waiting = Link(worker_dsn(database.dsn, "patient"), Outage(database.dsn), within=0.3)
    try:
        asking = asyncio.create_task(waiting.perform(Call(b"select count(*) from pgqueue.workers", (), len)))
        backend = "select count(*) from pg_stat_activity where application_name = 'patient'"
        seen: set[int] = set()

        def three_tries() -> bool:
            for row in conn.execute("select pid from pg_stat_activity where application_name = 'patient'"):
                seen.add(row[0])
            return len(seen) >= 3

        await wait_until_async(three_tries)
        # Earlier ones are cancelled: a call without a waiting caller waits for no lock.
        await wait_until_async(lambda: value(conn, backend) <= 1)
        holder.run("commit")
        assert await asyncio.wait_for(asking, 60) == 1
    finally:
        await waiting.close()


@pytest.mark.covers("A10")
async def test_a_link_tries_again_at_once_when_another_came_up_during_its_failed_attempt(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.worker.link.connection.FIRST_PAUSE", 600.0)
    outage = Outage(database.dsn)
    other = Trouble(outage)
    other.met(OSError("the server is away"))
    attempts = 0

    async def fail_once(_: Link) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            other.over()
            raise OSError("the server was away when this attempt began")

    link = Link(worker_dsn(database.dsn, "w"), outage, on_connect=fail_once)
    try:
        asking = link.perform(Call(b"select 1", (), len))
        assert await asyncio.wait_for(asking, 120) == 1
    finally:
        await link.close()
    assert attempts == 2
    assert outage.lasts is None


async def test_a_plan_that_a_migration_has_outdated_fails_no_call(database: Database, conn: psycopg.Connection) -> None:
    answer = Call(b"select * from public.answer()", (), list)
    conn.execute("create function public.answer() returns table (a int) language sql as 'select 1'")
    link = Link(worker_dsn(database.dsn, "w"), Outage(database.dsn))
    try:
        # Prepared by then.
        for _ in range(5):
            assert await link.perform(answer) == [(1,)]
        conn.execute("drop function public.answer()")
        conn.execute("create function public.answer() returns table (a int, b int) language sql as 'select 1, 2'")
        assert await link.perform(answer) == [(1, 2)]
        assert link.connects == 2
        # What no session can do is raised.
        with pytest.raises(UnsupportedOption):
            await link.perform(Call(b"do $$ begin raise feature_not_supported; end $$", (), list))
    finally:
        await link.close()


async def test_an_outage_whose_only_call_was_cancelled_ends_with_the_next_answer(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.worker.link.connection.FIRST_PAUSE", 600.0)
    outage = Outage(database.dsn)
    connects: list[Link] = []

    async def fail_once(link: Link) -> None:
        connects.append(link)
        if len(connects) == 1:
            raise OSError("a firewall has cut it")

    link = Link(worker_dsn(database.dsn, "w"), outage, on_connect=fail_once)
    try:
        asking = asyncio.create_task(link.perform(Call(b"select 1", (), len)))
        await wait_until_async(lambda: outage.lasts is not None)
        # As a handler at its timeout, in a step.
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await link.perform(Call(b"select 1", (), len)) == 1
        assert outage.lasts is None
    finally:
        await link.close()


async def test_the_settings_of_a_role_do_not_reach_a_workers_sessions_and_those_of_the_dsn_do(
    database: Database, conn: psycopg.Connection
) -> None:
    settings = ("default_transaction_isolation", "statement_timeout", "lock_timeout", "idle_session_timeout")
    for name, setting in zip(settings, ("serializable", "1ms", "1ms", "100ms"), strict=True):
        conn.execute(
            sql.SQL("alter database {} set {} to {}").format(
                sql.Identifier(database.name), sql.Identifier(name), sql.Literal(setting)
            )
        )

    async def found(dsn: str, *, prepare: bool = True) -> list[str]:
        connection = await connect(dsn, prepare=prepare)
        try:
            return [
                (await (await connection.execute(f"show {name}".encode())).fetchone() or ("?",))[0] for name in settings
            ]
        finally:
            await connection.close()

    database_dsn = uri(database.dsn, options="-c statement_timeout=0")
    assert await found(database_dsn) == ["read committed", "0", "30s", "0"]
    # Behind a pooler the session is shared, and left as it is.
    assert (await found(database_dsn, prepare=False))[0] == "serializable"


async def test_a_link_without_prepared_statements_works_in_read_committed_and_sets_nothing(
    database: Database, conn: psycopg.Connection
) -> None:
    conn.execute(
        sql.SQL("alter database {} set default_transaction_isolation to 'serializable'").format(
            sql.Identifier(database.name)
        )
    )
    pooled = Link(database.dsn, Outage(database.dsn, pooled=True))
    try:
        ask = Call(b"select current_setting('transaction_isolation')", (), lambda rows: rows[0][0])
        assert await pooled.perform(ask) == "read committed"
        assert (
            await pooled.perform(
                Call(b"select current_setting('default_transaction_isolation')", (), lambda rows: rows[0][0])
            )
            == "serializable"
        )
    finally:
        await pooled.close()


async def test_a_refusal_is_distinguished_from_everything_else(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGPORT", "PGHOSTADDR", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    with closing(socket.create_server(("127.0.0.1", 0))) as open_port:
        taken = open_port.getsockname()[1]
        assert not await refused(f"host=127.0.0.1 port={taken}")
        assert not await refused(f"host=127.0.0.1,127.0.0.1 port=1,{taken}")
        # By name it has more than one address.
        assert not await refused(f"host=localhost port={taken}")
    assert await refused(f"host=127.0.0.1 port={taken}")
    assert await refused(f"host=127.0.0.1,{tmp_path} port={taken}")
    assert await refused(f"host=localhost port={taken}")
    assert await refused(f"host=::1 port={taken}")
    assert await refused(f"hostaddr=::1,127.0.0.1 port={taken}")
    assert await refused(f"host={tmp_path}")
    assert await refused(f"postgresql://[::1]:{taken}/d")
    # The socket in the directory that libpq was built with.
    assert await refused("port=1")
    assert not await refused("service=elsewhere")
    assert not await refused("host=no-such-host.invalid")
    assert not await refused(database.dsn)


async def test_a_pooler_that_refuses_proves_nothing_about_its_server() -> None:
    for pooled, proven in ((True, False), (False, True)):
        outage = Outage("host=127.0.0.1 port=1", pooled=pooled)
        await outage.pause(0.01, outage.answers)
        assert (outage.refused_at is not None) == proven


def test_an_outage_ends_with_the_last_link_that_was_down(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("host=h dbname=app")
    first, second, third = Trouble(outage), Trouble(outage), Trouble(outage)
    with caplog.at_level(logging.INFO, "pgqueue"):
        for each in (first, second, third, first):
            each.met(OSError("gone\naway"))
        assert lines(caplog, "") == ["cannot use app on h (gone away); trying again until it answers"]
        first.over()
        first.over()
        with pytest.raises(asyncio.CancelledError), third:
            raise asyncio.CancelledError
        assert len(caplog.records) == 1
        second.over()
        assert len(lines(caplog, "app on h answers again after")) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_worker_works_over_tcp_whatever_the_address(
    host: str, database: Database, conn: psycopg.Connection
) -> None:
    try:
        proxy = Proxy(database.dsn, host)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    app = App()

    @app.task
    async def t() -> None: ...

    with proxy:
        async with working(app, proxy.dsn, name="w", poll_interval=NEVER):
            await wait_until_async(lambda: is_asleep(conn, "w"))
            assert await done(conn, enqueue(conn)) == ["succeeded"]
