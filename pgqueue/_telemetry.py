"""Traces with OpenTelemetry: a producer span around enqueue, a consumer span around execution, one trace for both.

A process with a tracer provider has imported opentelemetry; for any other, all this costs one lookup in sys.modules.
The context travels in the job's headers (traceparent, tracestate). Names and attributes are those of the semantic
conventions for messaging.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from pgqueue.job import Job
from pgqueue.middleware import Enqueuing
from pgqueue.signals import Signal

T = TypeVar("T")


def is_on() -> bool:
    """Return whether a tracer provider is set in this process."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return False
    provider = api.get_tracer_provider()
    return type(provider).__name__ not in ("ProxyTracerProvider", "NoOpTracerProvider")


def around_enqueue(jobs: Enqueuing, call_next: Callable[[Enqueuing], Any]) -> Any:
    """A middleware around enqueue: make a producer span, and write its context into the headers."""
    trace: Any = sys.modules["opentelemetry.trace"]
    tracer = _tracer(trace)
    attributes = _attributes(jobs.task, jobs.options.get("queue"), "send", "enqueue")
    if len(jobs.args) != 1:
        attributes["messaging.batch.message_count"] = len(jobs.args)
    span = tracer.start_span(f"enqueue {jobs.task}", kind=trace.SpanKind.PRODUCER, attributes=attributes)
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            _inject(jobs)
            result = call_next(jobs)
    except BaseException as error:
        _end(span, trace, None, error)
        raise
    if isinstance(result, Awaitable):
        return _awaited(result, span, trace)
    _end(span, trace, result, None)
    return result


def around_batch(
    name: str, jobs: Iterable[Mapping[str, Any]], run: Callable[[Iterable[Mapping[str, Any]]], Any]
) -> Any:
    """Enqueue jobs with their own options by `run`; with a tracer provider, in one producer span."""
    if not is_on():
        return run(jobs)
    given = list(jobs)

    def traced(batch: Enqueuing) -> Any:
        context = batch.options.get("headers") or {}
        return run(
            [{**job, "headers": {**(job.get("headers") or {}), **context}} for job in given] if context else given
        )

    return around_enqueue(Enqueuing(name, [{} for _ in given], {}), traced)


async def _awaited(result: Awaitable[T], span: Any, trace: Any) -> T:
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            value = await result
    except BaseException as error:
        _end(span, trace, None, error)
        raise
    _end(span, trace, value, None)
    return value


async def around_execution(job: Job, call_next: Callable[[], Any]) -> Any:
    """A middleware around execution: make a consumer span, child of the producer's."""
    trace: Any = sys.modules["opentelemetry.trace"]
    attributes = _attributes(job.task, job.queue, "process", "process")
    attributes["messaging.message.id"] = str(job.id)
    attributes["pgqueue.job.attempt"] = job.attempt
    if job.key is not None:
        attributes["pgqueue.job.key"] = job.key
    with _tracer(trace).start_as_current_span(
        f"process {job.task}",
        context=_extract(job.headers),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            return await call_next()
        except Signal as signal:
            # The handler decided on its job, which is no error of the span.
            span.set_attribute("pgqueue.job.signal", type(signal).__name__)
            raise
        except BaseException as error:
            if job.is_suspended:
                span.set_attribute("pgqueue.job.signal", "Suspended")
            else:
                _failed(span, trace, error)
            raise


def _tracer(trace: Any) -> Any:
    return trace.get_tracer("pgqueue")


def _attributes(task: str, queue: Any, kind: str, name: str) -> dict[str, Any]:
    attributes = {
        "messaging.system": "pgqueue",
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        "pgqueue.task": task,
    }
    if queue is not None:
        attributes["messaging.destination.name"] = str(queue)
    return attributes


def _inject(jobs: Enqueuing) -> None:
    from opentelemetry.propagate import inject  # noqa: PLC0415

    carrier: dict[str, str] = {}
    inject(carrier)
    if carrier:
        jobs.options["headers"] = {**(jobs.options.get("headers") or {}), **carrier}


def _extract(headers: Any) -> Any:
    from opentelemetry.context import Context  # noqa: PLC0415
    from opentelemetry.propagate import extract  # noqa: PLC0415

    # Not a child of a span that this worker may have open itself.
    carrier = {name: value for name, value in headers.items() if isinstance(value, str)} if headers else {}
    return extract(carrier, context=Context())


def _end(span: Any, trace: Any, result: object, error: BaseException | None) -> None:
    job_id = getattr(result, "job_id", result)
    if isinstance(job_id, int):
        span.set_attribute("messaging.message.id", str(job_id))
    if error is not None:
        _failed(span, trace, error)
    span.end()


def _failed(span: Any, trace: Any, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
