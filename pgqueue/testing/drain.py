"""Run due jobs in the test's own transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import orjson

from pgqueue._options import timedelta_text
from pgqueue.app import App
from pgqueue.db import consume
from pgqueue.db.call import Call, read_first, read_maybe_one, read_nothing, read_rows
from pgqueue.db.consume import JobRow
from pgqueue.db.json import micros, read_length
from pgqueue.errors import InvalidArgument, PgQueueError
from pgqueue.hooks import Event
from pgqueue.job import Surroundings
from pgqueue.logs import how_many, one_line
from pgqueue.testing.access import Access, access_to, stepped
from pgqueue.testing.attempts import Attempts, uses_asgiref
from pgqueue.testing.clock import clock_sql
from pgqueue.testing.steps import StepDoor
from pgqueue.worker.hold.held import End, Ending, Held, batches
from pgqueue.worker.presence import declarations
from pgqueue.worker.tell.events import dead_of
from pgqueue.worker.trade.exchange import failure_of
from pgqueue.worker.trade.trade import simpler

T = TypeVar("T")

_WORKER = "pgqueue.testing"

# As `JobRow` has them: jsonb after a byte that says 1, times in microseconds since 2000.
_CLAIM = f"""
select
    id, task, args::text, headers::text, queue, key, priority, attempt, max_attempts, reservation,
    (extract(epoch from run_at - '2000-01-01 00:00+00') * 1000000)::bigint,
    (extract(epoch from created_at - '2000-01-01 00:00+00') * 1000000)::bigint,
    (extract(epoch from lease_expires_at - '2000-01-01 00:00+00') * 1000000)::bigint,
    leader, {micros("timeout")}, losses, crashes, store_result
from pgqueue.reserve(%s::text, 1, %s::text[], lease => '1 day')
""".encode()

_NEXT_DUE = b"""
select j.id, (extract(epoch from j.ready_at - pgqueue._clock()) * 1000000)::bigint
from pgqueue.jobs j
where j.state in ('waiting', 'failed') and (%s::text[] is null or j.queue = any(%s::text[])) and j.id <= %s::bigint
    and not j.id = any(%s::bigint[])
    -- No time ends its wait.
    and not exists (select from pgqueue.event_waits w where w.job_id = j.id and w.until is null)
order by j.ready_at, j.id
limit 1
"""

_ANY_ID = 2**63 - 1


@dataclass(slots=True)
class Drained:
    """The result of `drain`.

    succeeded, snoozed, cancelled    how many attempts ended so
    failed    how many attempts failed and will be retried
    dead      how many jobs are dead
    crashed   how many attempts `crash_after` ended
    ids       the jobs that ran, in order; a job that ran twice appears twice
    errors    the exceptions of handlers, in order
    unknown   tasks of due jobs that the App does not know: these were left as they were
    """

    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    snoozed: int = 0
    cancelled: int = 0
    crashed: int = 0
    ids: list[int] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def drain(
    connection: Any,
    app: App,
    queue: str | Sequence[str] | None = None,
    *,
    limit: int = 1000,
    scheduled: bool = False,
    recursive: bool = True,
    raise_errors: bool = True,
    crash_after: Collection[str] = (),
) -> Drained:
    """Run due jobs one after another, on this connection and in its open transaction, and return the results.

    Handlers run in this thread, each in a savepoint, as in a worker: with middleware, hooks, validation and retry
    rules. `job.transaction()` yields this connection. The test rolls back, and nothing has happened. On a connection
    that is not in a transaction each step is committed.

    Once a step is stored, the writes of the handler up to it are kept, even if the handler fails later. Sleeps, and
    waits with a timeout, end with scheduled=True; `emit_event` on this connection provides an event.

    queue         only this queue, or these
    limit         attempts after which AssertionError is raised: a job that is retried or enqueues itself forever
    scheduled     when nothing is due, move the queue's clock to the next job's time and continue; see `Clock`
    recursive     run the jobs that handlers enqueue as well
    raise_errors  raise the exception of a handler after its failure is stored; False: collect it in `errors`
    crash_after   names of steps: right after such a step is stored the worker crashes, once for each, and the job runs
                  again

    The connection is one of psycopg or psycopg2, a Connection or Session of SQLAlchemy, or Django's. For an async
    connection, and where an event loop runs, there is `drain_async`. The transaction must be READ COMMITTED.

        task.enqueue(connection, "a@b.c")
        assert drain(connection, app).succeeded == 1
    """
    access = access_to(connection)
    if access.is_async:
        raise TypeError(
            "drain() needs a connection that is not async; for this one: await drain_async(connection, app)"
        )
    run = _Drain(access, app, _queues(queue), limit, scheduled, recursive, raise_errors, crash_after, on_loop=False)
    return stepped(run.run())


async def drain_async(
    connection: Any,
    app: App,
    queue: str | Sequence[str] | None = None,
    *,
    limit: int = 1000,
    scheduled: bool = False,
    recursive: bool = True,
    raise_errors: bool = True,
    crash_after: Collection[str] = (),
) -> Drained:
    """Run due jobs as `drain` does, with async handlers on the running event loop.

    The connection is an async one of psycopg, asyncpg or SQLAlchemy; any that `drain` takes will do as well.
    """
    access = access_to(connection)
    run = _Drain(access, app, _queues(queue), limit, scheduled, recursive, raise_errors, crash_after, on_loop=True)
    return await run.run()


def declare(connection: Any, app: App) -> None:
    """Write the App's declared tasks and schedules, as a worker's start does.

    `drain` begins with it. Call it earlier if a test checks the queue or priority of an enqueued job: the database must
    know the declared ones.
    """
    stepped(declarations.declare(app, access_to(connection).run))


async def declare_async(connection: Any, app: App) -> None:
    """Write the App's declarations on an async connection; see `declare`."""
    await declarations.declare(app, access_to(connection).run)


class _Drain:
    def __init__(
        self,
        access: Access,
        app: App,
        queues: list[str] | None,
        limit: int,
        scheduled: bool,
        recursive: bool,
        raise_errors: bool,
        crash_after: Collection[str],
        *,
        on_loop: bool,
    ) -> None:
        self._access = access
        self._steps = StepDoor(access, {crash_after} if isinstance(crash_after, str) else set(crash_after))
        self._app = app
        self._queues = queues
        self._limit = limit
        self._scheduled = scheduled
        self._recursive = recursive
        self._raise_errors = raise_errors
        self._done = Drained()
        self._attempts = Attempts(
            app,
            Surroundings(doors=Savepoints(access), statements=self._steps),
            on_loop=on_loop,
            uses_asgiref=uses_asgiref(access.connection),
        )
        self._attempts.on_event = self._tell
        self._newest = _ANY_ID
        # Reserved jobs that are given back at the end.
        self._skipped: list[Held] = []
        self._runs: Counter[str] = Counter()

    async def run(self) -> Drained:
        await declarations.declare(self._app, self._access.run)
        if not self._recursive:
            newest = b"select coalesce(max(id), 0) from pgqueue.jobs"
            self._newest = await self._access.run(Call(newest, (), read_first))
        try:
            while (held := await self._next()) is not None:
                await self._run_one(held)
        finally:
            self._attempts.close()
        await self._give_back()
        return self._done

    async def _next(self) -> Held | None:
        while True:
            rows = await self._access.run(Call(_CLAIM, (_WORKER, self._queues), read_rows))
            if rows:
                held = _held([_job_row(row) for row in rows])
                if held.row.task not in self._app.tasks:
                    if held.row.task not in self._done.unknown:
                        self._done.unknown.append(held.row.task)
                elif held.row.id <= self._newest:
                    return held
                self._skipped.append(held)
            elif not (self._scheduled and await self._move_clock()):
                return None

    async def _run_one(self, held: Held) -> None:
        task = self._app.tasks[held.row.task]
        if len(self._done.ids) >= self._limit:
            often = ", ".join(f"{name} ({how_many(times, 'time')})" for name, times in self._runs.most_common(3))
            raise AssertionError(
                f"drain made {how_many(self._limit, 'attempt')} and {held} is still due; what ran: {often}."
                " Does it retry or enqueue itself forever? Give a larger limit, or recursive=False"
            )
        self._done.ids.append(held.row.id)
        self._runs[task.name] += 1
        if await self._steps.attempt(held, lambda: self._attempts.attempt(held, task)):
            self._done.crashed += 1
            await self._access.run(consume.release([each.pair for each in (held, *held.members)]))
            return
        error = self._attempts.error
        for each in (held, *held.members):
            await self._store(each)
        if error is not None:
            self._done.errors.append(error)
            if self._raise_errors:
                await self._give_back()
                raise error

    async def _store(self, held: Held) -> None:
        """Store the end of an attempt. If the database refuses it, store a simpler form, as the worker does."""
        while True:
            try:
                async with self._access.savepoint():
                    state = await self._report(held)
                break
            except InvalidArgument as refusal:
                ending = simpler(held, refusal)
                if held.attempt.ending.end is End.SNOOZED:
                    ending = Ending(End.FAILED, {"class": "Snooze", "message": one_line(refusal)})
                if ending is None:
                    raise
                held.attempt.ending = ending
        self._count(state)
        self._tell(state, held)
        if state == "dead":
            await self._attempts.call_hooks("dead", dead_of(self._attempts.job_of(held), held))

    async def _report(self, held: Held) -> str:
        ending = held.attempt.ending
        match ending.end:
            case End.SETTLED:
                return "succeeded"
            case End.SUSPENDED:
                return "snoozed"
            case End.SUCCEEDED:
                result = None if ending.result is None else orjson.Fragment(ending.result)
                is_held = await self._access.run(consume.complete(*held.pair, result))
                return "succeeded" if is_held else "lost"
            case End.FAILED:
                return await self._access.run(consume.fail(failure_of(held))) or "lost"
            case End.SNOOZED if ending.throttle is not None:
                state = await self._access.run(consume.throttled(*held.pair, ending.snooze, *ending.throttle))
                return "snoozed" if state == "throttled" else state or "lost"
            case End.SNOOZED:
                return "snoozed" if await self._access.run(consume.snooze(*held.pair, ending.snooze)) else "lost"
        await self._access.run(consume.release([held.pair], ending.delay))
        return "released"

    def _count(self, state: str) -> None:
        name = "failed" if state in ("failed", "blocked", "waiting") else state
        if name in ("succeeded", "failed", "dead", "snoozed", "cancelled"):
            setattr(self._done, name, getattr(self._done, name) + 1)

    def _tell(self, kind: str, held: Held) -> None:
        row, attempt = held.row, held.attempt
        about = (row.id, row.task, row.queue, row.attempt, attempt.ending.error, attempt.seconds)
        self._app.tell(Event(kind, _WORKER, 1, *about))

    async def _move_clock(self) -> bool:
        """Move the queue's clock to the time of the next job; False when there is none."""
        skipped = [each.row.id for each in self._skipped]
        parameters = (self._queues, self._queues, self._newest, skipped)
        found = await self._access.run(Call(_NEXT_DUE, parameters, read_maybe_one))
        if found is None or found[1] <= 0:
            return False
        if not await self._access.run(Call(b"select to_regclass('pgqueue_testing.clock') is not null", (), read_first)):
            await self._access.script(clock_sql())
        advance = b"select pgqueue_testing.advance_clock(%s::text::interval) is not null"
        await self._access.run(Call(advance, (timedelta_text(timedelta(microseconds=found[1])),), read_nothing))
        return True

    async def _give_back(self) -> None:
        if self._skipped:
            pairs = [each.pair for held in self._skipped for each in (held, *held.members)]
            await self._access.run(consume.release(pairs))
            self._skipped.clear()


class Savepoints:
    """Directs `job.transaction()` in a test to the test's connection, in a savepoint."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def sync_door(self, given: Any) -> Any:
        """Return the access for `with job.transaction()`."""
        if self._access.is_async:
            raise _wrong_way("with", "an async")
        return _SyncSavepoint(self._access, given)

    def async_door(self, given: Any) -> Any:
        """Return the access for `async with job.transaction()`."""
        if not self._access.is_async:
            raise _wrong_way("async with", "a sync")
        return _AsyncSavepoint(self._access, given)


class _SyncSavepoint:
    is_replaceable = False

    def __init__(self, access: Access, given: Any) -> None:
        self.connection = access.connection if given is None else given
        self._access = access
        # A connection that the handler gives has a separate savepoint or transaction.
        self._block = (access if given is None else access_to(given)).block()

    def begin(self) -> None:
        self._block.__enter__()

    def run(self, call: Call[T]) -> T:
        return stepped(self._access.run(call))

    def end(self, error: BaseException | None) -> None:
        self._block.__exit__(error and type(error), error, error and error.__traceback__)


class _AsyncSavepoint:
    is_replaceable = False

    def __init__(self, access: Access, given: Any) -> None:
        self.connection = access.connection if given is None else given
        self._access = access
        self._block = (access if given is None else access_to(given)).block()

    async def begin(self) -> None:
        await self._block.__aenter__()

    def run(self, call: Call[T]) -> Coroutine[Any, Any, T]:
        return self._access.run(call)

    async def end(self, error: BaseException | None) -> None:
        await self._block.__aexit__(error and type(error), error, error and error.__traceback__)


def _wrong_way(how: str, kind: str) -> PgQueueError:
    other = "drain_async on an async connection" if kind == "a sync" else "drain on a sync connection"
    return InvalidArgument(
        f"`{how} job.transaction()` in a drain on {kind} connection", hint=f"run this handler with {other}"
    )


def _queues(queue: str | Sequence[str] | None) -> list[str] | None:
    return [queue] if isinstance(queue, str) else None if queue is None else list(queue)


def _job_row(row: tuple[Any, ...]) -> JobRow:
    values = list(row)
    values[2] = b"\x01" + str(values[2]).encode()
    values[3] = None if values[3] is None else b"\x01" + str(values[3]).encode()
    values[14] = read_length(values[14])
    return JobRow._make([*values, "reserved", None])


def _held(rows: list[JobRow]) -> Held:
    leaders = batches(rows, float("inf"))
    return leaders[0] if leaders else Held(rows[0], float("inf"))
