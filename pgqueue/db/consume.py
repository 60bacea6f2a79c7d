"""Statements of a worker: claim jobs, report how they ended, keep their leases, wait for more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import orjson

from pgqueue.db.arrays import Texts, texts
from pgqueue.db.call import (
    Call,
    Row,
    array,
    pairs,
    read_column,
    read_first,
    read_maybe_one,
    read_nothing,
    read_one,
)
from pgqueue.db.json import error_text, interval_text, to_result


class JobRow(NamedTuple):
    """One row of the reply of `exchange`, raw: jsonb as bytes, times in microseconds since 2000.

    `outcome`: "reserved": a claimed job, with all columns; `leader` is the id of
    the leader of its batch, None for a job that belongs to none. Any other: how a job that was reported ended, with its
    id, its reservation, and a `note`. "unclaimed": the claim failed, and the ends are stored.
    "unreadable": a claimed job whose row no text in UTF-8 can show.
    """

    id: int
    task: str
    args: bytes | None
    headers: bytes | None
    queue: str
    key: str | None
    priority: int
    attempt: int
    max_attempts: int
    reservation: int
    run_at: int
    created_at: int
    lease_expires_at: int
    leader: int | None
    timeout: timedelta | None
    losses: int
    crashes: int
    store_result: bool
    outcome: str
    note: str | None

    def log_fields(self) -> dict[str, object]:
        """Return the fields that a JSON line of the log has for this job."""
        return {"job_id": self.id, "queue": self.queue, "task": self.task, "attempt": self.attempt}


_COLUMNS = ", ".join(JobRow._fields).encode()

# The same rows, all of them reserved.
_RESERVE = (
    b"select "
    + b", ".join(
        {"outcome": b"'reserved'::text", "note": b"null::text"}.get(name, name.encode()) for name in JobRow._fields
    )
    + b" from pgqueue.reserve(%s::text, %s::integer, %s::text[], %s::integer[], %s::interval, %s::text)"
)

# The same, where some rows cannot be read: those have the outcome "unreadable", and no args.
_RESERVE_LEGIBLE = (
    b"select "
    + b", ".join(
        {
            "task": b"pgqueue.legible(to_jsonb(r.task)) #>> '{}'",
            "args": b"case when c.ok then r.args end",
            "headers": b"case when c.ok then r.headers end",
            "queue": b"pgqueue.legible(to_jsonb(r.queue)) #>> '{}'",
            "key": b"pgqueue.legible(to_jsonb(r.key)) #>> '{}'",
            "outcome": b"case when c.ok then 'reserved' else 'unreadable' end::text",
            "note": b"null::text",
        }.get(name, b"r." + name.encode())
        for name in JobRow._fields
    )
    + b" from pgqueue.reserve(%s::text, %s::integer, %s::text[], %s::integer[], %s::interval, %s::text) r"
    + b" cross join lateral (select pgqueue.legible(w.whole) = w.whole as ok"
    + b" from (select jsonb_build_array(r.task, r.args, r.headers, r.queue, r.key) as whole) w offset 0) c"
)

# From 1970, the epoch of Unix, to that of PostgreSQL.
_MICROSECONDS_TO_2000 = 946_684_800_000_000

# As JobRow._make, and twice as fast: a worker reads a hundred thousand rows a second.
_job_row: Callable[[Row], JobRow] = partial(tuple.__new__, JobRow)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim: the arguments of `reserve`."""

    worker: str
    queues: Sequence[str] | None
    weights: Sequence[int] | None
    lease: float
    strategy: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt, with what `fail` takes."""

    job_id: int
    reservation: int
    error: Mapping[str, object]
    retry_in: timedelta | str | None = None
    retry: bool = True
    policy: str | None = None
    cancel: bool = False


def exchange(
    claim: Claim,
    max_jobs: int,
    completed: Sequence[tuple[int, int]] = (),
    results: Sequence[bytes | None] | None = None,
    failed: Sequence[Failure] = (),
    *,
    ask: bool,
    careful: bool = False,
) -> Call[list[JobRow]]:
    """Report ended jobs and claim others; a claim alone goes to `reserve`, which costs the server less.

    Without `ask`, an attempt on which a retry function would decide is left undecided. A `careful` claim also reads
    jobs that a claim could not return.
    """
    params: tuple[object, ...] = (
        claim.worker,
        max_jobs,
        array(claim.queues),
        array(claim.weights),
        timedelta(seconds=claim.lease),
        claim.strategy,
    )
    if not completed and not failed:
        return Call(_RESERVE_LEGIBLE if careful else _RESERVE, params, _read_jobs, raw=True)
    params += (*_pair_texts(completed), None if results is None else Texts(results))
    text = (
        b"select " + _COLUMNS + b" from pgqueue.exchange(%s::text, %s::integer, %s::text[], %s::integer[],"
        b" %s::interval, %s::text, %s::bigint[], %s::bigint[], %s::text[]::jsonb[]"
    )
    if failed:
        text += (
            b", %s::bigint[], %s::bigint[], %s::text[]::jsonb[], %s::text[]::interval[], %s::boolean[], %s::text[],"
            b" %s::boolean[]"
        )
        params += (
            *_pair_texts([(each.job_id, each.reservation) for each in failed]),
            Texts(error_text(each.error) for each in failed),
            texts(None if each.retry_in is None else interval_text(each.retry_in) for each in failed),
            [each.retry for each in failed],
            texts(each.policy for each in failed),
            [each.cancel for each in failed],
        )
        if not ask:
            text += b", ask => false"
    return Call(text + b")", params, _read_jobs, raw=True)


def complete(job_id: int, reservation: int, result: object = None) -> Call[bool]:
    """Complete one job in the connection's transaction; reads whether it was still held."""
    text = None if result is None else to_result(result).decode()
    params = (job_id, reservation, text)
    return Call(b"select pgqueue.complete(%s::bigint, %s::bigint, %s::text::jsonb)", params, read_first)


def complete_call(held: Sequence[tuple[int, int]], result: object = None) -> Call[bool]:
    """Complete the jobs of one call, the first with the result; reads whether all were held."""
    first, *others = held
    if not others:
        return complete(*first, result)
    text = None if result is None else to_result(result).decode()
    return Call(
        b"select bool_and(pgqueue.complete(w.id, w.reservation, case when w.id = %s::bigint then %s::text::jsonb end))"
        b" from unnest(%s::bigint[], %s::bigint[]) w (id, reservation)",
        (first[0], text, *pairs(sorted(held))),
        read_first,
    )


def fail(failure: Failure) -> Call[str | None]:
    """Report a failed attempt; reads the new state, or None when the lease is lost."""
    return Call(
        b"select pgqueue.fail(%s::bigint, %s::bigint, %s::jsonb, %s::interval, %s::boolean, %s::text, %s::boolean)",
        (
            failure.job_id,
            failure.reservation,
            error_text(failure.error).decode(),
            failure.retry_in,
            failure.retry,
            failure.policy,
            failure.cancel,
        ),
        read_first,
    )


def snooze(job_id: int, reservation: int, delay: timedelta | str) -> Call[bool]:
    """Defer a job, uncounted; reads whether it was still held."""
    return Call(
        b"select pgqueue.snooze(%s::bigint, %s::bigint, %s::interval)", (job_id, reservation, delay), read_first
    )


def spent(job_id: int, reservation: int, units: int) -> Call[bool]:
    """Say how many units a job has taken of its limits; reads whether it was still held."""
    return Call(b"select pgqueue.spent(%s::bigint, %s::bigint, %s::integer)", (job_id, reservation, units), read_first)


def throttled(job_id: int, reservation: int, delay: timedelta | str, of: str | None, reason: str) -> Call[str | None]:
    """Give a job back, and throttle its limit_key or task. Reads "throttled"; its state if the attempt counted; or None
    if it was no longer held."""
    return Call(
        b"select pgqueue.throttled(%s::bigint, %s::bigint, %s::interval, %s::text, %s::text)",
        (job_id, reservation, delay, of, reason or None),
        read_first,
    )


class Extended(NamedTuple):
    """A lease that still holds. Nothing was granted to a job whose row is locked: its `lease_expires_at` is None."""

    job_id: int
    lease_expires_at: datetime | None
    cancel_requested: bool


def extend(held: Sequence[tuple[int, int]], lease: float, started: Sequence[bool]) -> Call[list[Extended]]:
    """Extend leases, and report which handlers run; reads the ones still held."""
    ids, reservations = pairs(held)
    return Call(
        b"select job_id, lease_expires_at, cancel_requested"
        b" from pgqueue.extend(%s::bigint[], %s::bigint[], %s::interval, %s::boolean[])",
        (ids, reservations, timedelta(seconds=lease), list(started)),
        lambda rows: list(map(Extended._make, rows)),
    )


def started(held: Sequence[tuple[int, int]]) -> Call[list[int]]:
    """Report that the handlers of these jobs are about to run; reads the ids that were not held."""
    ids, reservations = pairs(held)
    return Call(b"select pgqueue.started(%s::bigint[], %s::bigint[])", (ids, reservations), read_column)


def states(job_ids: Sequence[int]) -> Call[dict[int, str]]:
    """Read the states of jobs by id, without those that history does not keep."""
    return Call(
        b"select w.id, o.state from unnest(%s::bigint[]) w (id) cross join lateral pgqueue.outcome(w.id) o",
        (list(job_ids),),
        lambda rows: {row[0]: row[1] for row in rows},
    )


def crashed(worker: str, held: Sequence[tuple[int, int]]) -> Call[list[int]]:
    """Report that a worker process died while it ran `held`; reads the ids of all jobs that it had reserved."""
    ids, reservations = pairs(held)
    return Call(
        b"select pgqueue.crashed(%s::text, %s::bigint[], %s::bigint[])", (worker, ids, reservations), read_column
    )


def hold(held: Sequence[tuple[int, int]]) -> Call[bool]:
    """Lock jobs for this transaction; reads whether all are still held."""
    if len(held) == 1:
        return Call(b"select pgqueue.hold(%s::bigint, %s::bigint)", held[0], read_first)
    return Call(
        b"select bool_and(pgqueue.hold(w.id, w.reservation))"
        b" from unnest(%s::bigint[], %s::bigint[]) w (id, reservation)",
        pairs(sorted(held)),
        read_first,
    )


def is_wanted(worker: str, queues: Sequence[str]) -> Call[bool]:
    """Ask whether another worker that serves one of these queues is idle."""
    return Call(b"select pgqueue.is_wanted(%s::text, %s::text[])", (worker, list(queues)), read_first)


def release(held: Sequence[tuple[int, int]], delay: float = 0.0) -> Call[list[int]]:
    """Give jobs back, uncounted; reads the ids that were not held."""
    ids, reservations = pairs(held)
    return Call(
        b"select pgqueue.release(%s::bigint[], %s::bigint[], %s::interval)",
        (ids, reservations, timedelta(seconds=delay)),
        read_column,
    )


def held_by(worker: str, handed_within: float | None = None) -> Call[list[tuple[int, int]]]:
    """Read the (id, reservation) of every job that executes under the worker's name.

    With `handed_within` only of those that were handed to it in that many seconds, except the last half second.
    """
    within = None if handed_within is None else timedelta(seconds=handed_within)
    return Call(b"select job_id, reservation from pgqueue.held_by(%s::text, %s::interval)", (worker, within), _held)


class Idle(NamedTuple):
    """The reply of `idle`: seconds to the next due time and to the next call, whether the worker is registered, and the
    clock of the database when the call came, in seconds since 1970.
    """

    due_in: float | None
    again_in: float
    is_registered: bool
    clock: float


class Handoff(NamedTuple):
    """Where a worker takes hand-offs: a channel on which the session with the process id `listener` listens."""

    channel: str
    listener: int
    lease: timedelta


def idle(
    worker: str, queues: Sequence[str] | None, seconds: float, memory: int | None = None, handoff: Handoff | None = None
) -> Call[Idle]:
    """Register the worker as idle, and run maintenance. `memory` is what the process holds, in bytes.

    With `handoff`, enqueue() may reserve jobs for this worker.
    """
    return Call(
        b"select extract(epoch from next_due - pgqueue._clock())::float8,"
        b" extract(epoch from call_again_in)::float8, registered,"
        # Not as of its reply: maintenance may run before that.
        b" extract(epoch from pgqueue._clock() - (clock_timestamp() - statement_timestamp()))::float8"
        b" from pgqueue.idle(%s::text, %s::text[], %s::interval, %s::bigint, %s::text, %s::integer, %s::interval)",
        (worker, array(queues), timedelta(seconds=seconds), memory, *(handoff or (None, None, None))),
        lambda rows: Idle._make(rows[0]),
    )


def read_handoff(payload: str) -> tuple[JobRow, float, float]:
    """Read a job that was handed over: its row, when that was (seconds since 1970), and its lease in seconds.

    A newer server may send more fields than are known here.
    """
    header, _, rest = payload.partition("\n")
    args, _, headers = rest.partition("\n")
    (
        job_id, reservation, task, queue, priority, max_attempts, run_at, reserved_at, lease, timeout, store_result,
        created_at, *_,
    ) = orjson.loads(header)  # fmt: skip
    row = JobRow(
        id=job_id,
        task=task,
        args=_as_jsonb(args),
        headers=_as_jsonb(headers) if headers else None,
        queue=queue,
        key=None,
        priority=priority,
        attempt=1,
        max_attempts=max_attempts,
        reservation=reservation,
        run_at=run_at - _MICROSECONDS_TO_2000,
        created_at=created_at - _MICROSECONDS_TO_2000,
        lease_expires_at=reserved_at - _MICROSECONDS_TO_2000 + round(lease * 1_000_000),
        leader=None,
        timeout=None if timeout is None else timedelta(seconds=timeout),
        losses=0,
        crashes=0,
        store_result=store_result,
        outcome="reserved",
        note=None,
    )
    return row, reserved_at / 1_000_000, lease


def awake(worker: str) -> Call[None]:
    """Remove the idle registration: producers need not wake this worker."""
    return Call(b"select pgqueue.awake(%s::text)", (worker,), read_nothing)


def maintain(max_age: float = 0.0) -> Call[tuple[bool, int, int, int, float, dict[str, str] | None]]:
    """Run maintenance.

    Reads (ran, rescued, leases with a grace period, expired, seconds to the next call, steps that keep failing with
    their errors; None: it did not run).
    """
    return Call(
        b"select ran, rescued, prolonged as grace_periods, expired, extract(epoch from call_again_in)::float8, failing"
        b" from pgqueue.maintain(%s::interval)",
        (timedelta(seconds=max_age),),
        read_one,
    )


def announce(channel: str, payload: str) -> Call[None]:
    """Notify a channel, as enqueue does."""
    return Call(b"select pg_catalog.pg_notify(%s::text, %s::text)", (channel, payload), read_nothing)


def version() -> Call[tuple[str | None, str | None, str | None, str | None] | None]:
    """Read (version, revision, digest, oldest client that it serves) of what is installed."""
    # An older schema has no oldest_client.
    return Call(
        b"select version, revision, digest, to_jsonb(v) ->> 'oldest_client' from pgqueue.version() v",
        (),
        read_maybe_one,
    )


def _as_jsonb(text: str) -> bytes:
    # As the server sends it: see read_json.
    return b"\x01" + text.encode()


def _read_jobs(rows: list[Row]) -> list[JobRow]:
    return list(map(_job_row, rows))


def _held(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row[0], row[1]) for row in rows]


def _pair_texts(held: Sequence[tuple[int, int]]) -> tuple[str, str]:
    # As Python writes a list, at once; psycopg writes a thousand numbers one by one. PostgreSQL skips the spaces.
    ids, reservations = str([pair[0] for pair in held]), str([pair[1] for pair in held])
    return f"{{{ids[1:-1]}}}", f"{{{reservations[1:-1]}}}"
