"""One trace from the enqueue to the execution, when a tracer provider is set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import pgqueue
from pgqueue import App, Snooze
from pgqueue.errors import InvalidArgument
from tests.calls import enqueue, job
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What was traced; the provider is gone when the test ends."""
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter.get_finished_spans
    provider.shutdown()


def named(spans: Any, name: str) -> list[Any]:
    return [span for span in spans() if span.name == name]


def app_of_tasks() -> App:
    app = App()

    @app.task
    async def asynchronous() -> None:
        with trace.get_tracer("mine").start_as_current_span("inside async"):
            pass

    @app.task
    def synchronous() -> None:
        with trace.get_tracer("mine").start_as_current_span("inside sync"):
            pass

    @app.task
    async def wrong(what: str) -> None:
        if what == "snooze":
            raise Snooze("1 hour")
        raise ValueError("not today")

    return app


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
async def test_a_job_goes_on_with_the_trace_of_its_enqueue(
    kind: str, spans: Any, database: Database, conn: psycopg.Connection
) -> None:
    app = app_of_tasks()
    with trace.get_tracer("mine").start_as_current_span("request") as request:
        job_id = app.tasks[kind].using(queue="q", key="k", headers={"own": 1}).enqueue(conn)
    headers = job(conn, job_id).headers
    assert set(headers) == {"own", "traceparent"}
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    [producer], [consumer] = named(spans, f"enqueue {kind}"), named(spans, f"process {kind}")
    [inside] = named(spans, f"inside {kind[:-7]}")
    assert len({span.context.trace_id for span in (producer, consumer, inside)} | {request.context.trace_id}) == 1
    assert producer.parent.span_id == request.context.span_id
    assert consumer.parent.span_id == producer.context.span_id
    assert inside.parent.span_id == consumer.context.span_id
    assert (producer.kind, consumer.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    shared = {"messaging.system": "pgqueue", "messaging.destination.name": "q", "messaging.message.id": str(job_id)}
    assert shared.items() <= dict(producer.attributes).items()
    assert shared.items() <= dict(consumer.attributes).items()
    assert consumer.attributes["messaging.operation.type"] == "process"
    assert (consumer.attributes["pgqueue.job.attempt"], consumer.attributes["pgqueue.job.key"]) == (1, "k")


async def test_failures_are_errors_of_the_span_and_signals_are_not(
    spans: Any, database: Database, conn: psycopg.Connection
) -> None:
    app = app_of_tasks()
    failed = enqueue(conn, "wrong", {"what": "fail"})
    snoozed = enqueue(conn, "wrong", {"what": "snooze"})
    async with working(app, database.dsn):
        await wait_until_async(lambda: job(conn, failed).state == "failed" and job(conn, snoozed).attempts == 0)
        await wait_until_async(lambda: len(named(spans, "process wrong")) == 2)
    by_job = {int(span.attributes["messaging.message.id"]): span for span in named(spans, "process wrong")}
    assert by_job[failed].status.status_code is trace.StatusCode.ERROR
    assert by_job[failed].attributes["error.type"] == "ValueError"
    assert by_job[failed].parent is None
    assert by_job[snoozed].status.status_code is trace.StatusCode.UNSET
    assert by_job[snoozed].attributes["pgqueue.job.signal"] == "Snooze"


async def test_every_way_to_enqueue_carries_the_context(
    spans: Any, database: Database, conn: psycopg.Connection
) -> None:
    connection = await database.connect_async()
    pgqueue.enqueue(conn, "a")
    await pgqueue.enqueue(connection, "b", headers={"own": 1})
    pgqueue.enqueue_many(conn, "c", [{}, {}])
    pgqueue.enqueue_outcome(conn, "d")
    pgqueue.enqueue_batch(conn, [{"task": "e", "headers": {"own": 2}}, {"task": "f"}])
    pgqueue.chain(conn, {"task": "g", "headers": {"own": 3}}, {"task": "h"})
    rows = conn.execute("select task, headers from pgqueue.jobs order by id").fetchall()
    assert [task for task, _ in rows] == ["a", "b", "c", "c", "d", "e", "f", "g", "h"]
    ids = {f"{span.context.span_id:016x}": span.name for span in spans()}
    assert [ids[headers["traceparent"].split("-")[2]] for _, headers in rows] == [
        "enqueue a", "enqueue b", "enqueue c", "enqueue c", "enqueue d", "enqueue batch", "enqueue batch",
        "enqueue chain", "enqueue chain",
    ]  # fmt: skip
    assert [headers.get("own") for _, headers in rows] == [None, 1, None, None, None, 2, None, 3, None]
    with pytest.raises(InvalidArgument):
        await pgqueue.enqueue(connection, "wrong", queue="")
    [refused] = named(spans, "enqueue wrong")
    assert refused.status.status_code is trace.StatusCode.ERROR
    await connection.close()


def test_without_a_provider_nothing_is_added(conn: psycopg.Connection) -> None:
    assert job(conn, pgqueue.enqueue(conn, "t")).headers is None
