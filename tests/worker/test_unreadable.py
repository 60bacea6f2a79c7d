"""Rows with bytes that no text in UTF-8 has, as a database of another encoding may hold: they stop nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from pgqueue import App, cli
from pgqueue.config import WorkerConfig
from pgqueue.db import consume, observe
from pgqueue.db.call import perform
from pgqueue.errors import InvalidArgument
from pgqueue.schema.migrate import migrate
from pgqueue.testing.databases import uri
from pgqueue.worker import Worker
from pgqueue.worker.hold.held import End, Ending, Held
from pgqueue.worker.presence.identity import Identity
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.trade import exchange
from tests.calls import enqueue, value
from tests.databases import Cloner
from tests.facts import wait_until_async
from tests.workers import done, is_asleep, working


@pytest.fixture(params=["SQL_ASCII", "WIN1252"])
def dsn(request: pytest.FixtureRequest, cloner: Cloner) -> Iterator[str]:
    """A database in another encoding, which has bytes that are no text in UTF-8."""
    name = f"pgqueue_{request.param.lower()}_{cloner.empty().name[-12:]}"
    with psycopg.connect(cloner.server_dsn, autocommit=True) as server:
        provider = " locale_provider libc" if server.info.server_version >= 150000 else ""
        try:
            server.execute(
                sql.SQL(
                    "create database {} template template0 encoding {} lc_collate 'C' lc_ctype 'C'" + provider
                ).format(sql.Identifier(name), sql.Literal(request.param))
            )
        except psycopg.errors.FeatureNotSupported:
            pytest.skip(f"this server has no conversion of {request.param}")
        dsn = uri(cloner.server_dsn, dbname=name)
        migrate(dsn)
        yield dsn
        server.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True, client_encoding="UTF8") as conn:
        yield conn


def _enqueue_raw(dsn: str, call: bytes) -> int:
    with psycopg.connect(dsn, autocommit=True) as raw:
        # Bytes as they are, with no conversion.
        raw.execute("select set_config('client_encoding', current_setting('server_encoding'), false)")
        result = raw.pgconn.exec_(b"select " + call)
        assert result.ntuples == 1, result.error_message
        return int(result.get_value(0, 0) or b"0")


def _unreadable(dsn: str) -> list[int]:
    return [
        _enqueue_raw(dsn, b"pgqueue.enqueue('note', '{\"text\": \"caf\x81\"}')"),
        _enqueue_raw(dsn, b"pgqueue.enqueue('note', '{}', queue => 'q\x81')"),
        _enqueue_raw(dsn, b"pgqueue.enqueue('t\x81', '{}')"),
    ]


async def test_a_job_that_cannot_be_read_is_dead_with_the_reason_and_all_others_run(
    dsn: str, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task(store_result=True)
    async def note(text: str) -> str:
        return text

    good = [enqueue(conn, "note", {"text": "fine"}) for _ in range(3)]
    bad = _unreadable(dsn)
    async with working(app, dsn, concurrency=2, name="reads") as worker:
        await done(conn, *good, *bad, timeout=60)
        # A worker that is idle is handed nothing that it cannot read.
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        bad += _unreadable(dsn)
        good += [enqueue(conn, "note", {"text": "fine"}) for _ in range(3)]
        await done(conn, *good, *bad, timeout=60)
    assert _ended(conn, good) == {("succeeded", 1, None, "fine")}
    assert _ended(conn, bad) == {("dead", 1, "Unreadable", None)}


@pytest.mark.parametrize("place", [0, 1])
async def test_payloads_beside_one_that_cannot_be_read_are_processed(
    place: int, dsn: str, conn: psycopg.Connection
) -> None:
    app = App()
    got: list[object] = []

    @app.task(accumulate=True)
    async def several(batch: dict[str, list[dict[str, str]]]) -> None:
        got.extend(each["text"] for payloads in batch.values() for each in payloads)

    call = b"pgqueue.enqueue('several', '{\"text\": \"\x81\"}', key => 'k')"
    texts = ["a", "b"]
    texts.insert(place, "")
    jobs = [enqueue(conn, "several", {"text": text}, key="k") if text else _enqueue_raw(dsn, call) for text in texts]
    async with working(app, dsn, concurrency=2):
        await done(conn, *jobs, timeout=60)
    assert got == ["a", "b"]
    assert [_state(conn, each) for each in jobs] == ["succeeded" if text else "dead" for text in texts]


async def test_a_claim_that_cannot_be_read_is_not_charged_to_the_end_beside_it(
    dsn: str, conn: psycopg.Connection
) -> None:
    app = App()
    good = enqueue(conn, "note", {"text": "fine"})
    worker = Worker(app, dsn, WorkerConfig(name="w", listen=False))
    link = worker._links.first
    [row] = await link.perform(consume.exchange(consume.Claim("w", None, None, 30.0, "weighted"), 1, ask=True))
    held = Held(row, 1e12)
    worker._holding.add(held)
    worker._outbox.end(held, Ending(End.SUCCEEDED, result=b'"done"'))
    [bad, *_] = _unreadable(dsn)
    # In one statement: the claim fails as it is read, and the end with it.
    await worker._trade.claim(link, 1)
    assert _ended(conn, [good]) == {("succeeded", 1, None, "done")}
    assert _state(conn, bad) == "waiting"
    await worker._links.close()


def test_claims_and_ends_go_apart_for_as_long_as_claims_are_careful(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    config = WorkerConfig(name="w")
    claim = consume.Claim("w", None, None, config.lease, config.strategy)
    both = exchange.Exchange(claim, Identity(config), Requests())
    refusal = InvalidArgument("a byte")
    refusal.__cause__ = psycopg.errors.CharacterNotInRepertoire()
    assert both.can_be_careful(refusal)
    # Another claim, with ends, was under way on the other connection, and was refused as well.
    both.go_apart("a byte")
    for clock[0] in (1004.0, 1006.0, 1059.0, 1061.0):
        assert both.is_apart == both.is_careful


def test_lists_show_a_row_that_cannot_be_read_among_the_others(dsn: str, conn: psycopg.Connection) -> None:
    good = enqueue(conn, "note", {"text": "fine"})
    bad = _unreadable(dsn)
    assert [row["id"] for row in perform(conn, observe.jobs([good, *bad]))] == [good, *bad]
    for command in (["jobs", "list"], ["jobs", "show", str(bad[0])], ["queues", "list"], ["status"], ["doctor"]):
        shown = CliRunner().invoke(cli.cli, [*command, "--dsn", dsn])
        assert shown.exit_code in (0, 1), (command, shown.output)
        assert "0x81" not in shown.output
    assert "caf?" in CliRunner().invoke(cli.cli, ["jobs", "show", str(bad[0]), "--dsn", dsn]).output
    [task, queue] = [perform(conn, observe.jobs([each]))[0] for each in (bad[2], bad[1])]
    assert (task["task"], queue["queue"]) == ("t?", "q?")


def _ended(conn: psycopg.Connection, jobs: Sequence[int]) -> set[tuple[object, ...]]:
    rows = conn.execute(
        "select j.state::text, j.attempts, j.errors -> -1 ->> 'class', j.result from pgqueue.all_jobs j"
        " where j.id = any (%s)",
        [list(jobs)],
    )
    return set(rows.fetchall())


def _state(conn: psycopg.Connection, job_id: int) -> object:
    return value(conn, "select j.state::text from pgqueue.all_jobs j where j.id = %s", job_id)
