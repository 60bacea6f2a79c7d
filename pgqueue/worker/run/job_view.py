"""The job as handlers and middleware see it, made from one that this worker holds."""

from __future__ import annotations

from pgqueue.db.json import Unreadable, read_time
from pgqueue.job import Flag, Job, State, Surroundings
from pgqueue.middleware import Codec
from pgqueue.worker.hold.held import Held


def make_job(held: Held, surroundings: Surroundings, codec: Codec | None) -> Job:
    """Return the Job of an attempt. The results of its steps are written and read by `codec`."""
    row = held.row
    return Job(
        row.id,
        row.task,
        {} if isinstance(held.args, Unreadable) else held.args,
        None if isinstance(held.headers, Unreadable) else held.headers,
        row.queue,
        row.key,
        row.priority,
        row.attempt,
        row.max_attempts,
        row.reservation,
        read_time(row.run_at),
        read_time(row.created_at),
        read_time(row.lease_expires_at),
        row.timeout,
        _make_state(held, surroundings, codec),
    )


def _make_state(held: Held, surroundings: Surroundings, codec: Codec | None) -> State:
    ends_at = None if held.timeout is None or held.started is None else held.started + held.timeout
    state = State(surroundings, Flag(), ends_at, stores_result=held.row.store_result)
    state.others = [member.pair for member in held.members]
    if codec is not None:
        state.encode = codec.encode
        state.decode = codec.decode
    return state
