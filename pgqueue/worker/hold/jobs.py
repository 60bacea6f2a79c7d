"""The job as handlers, middleware and hooks see it, made from one that this worker holds."""

from __future__ import annotations

import threading

from pgqueue.app import App
from pgqueue.db.json import Unreadable, read_time
from pgqueue.job import Execution, Flag, Job, Surroundings
from pgqueue.middleware import Codec
from pgqueue.worker.hold.held import Held


class Jobs:
    """Makes the Job of an attempt when it is first needed: most handlers do not ask for it.

    `here`: a sync handler runs in the thread that asks, where a loop may run. For tests.
    """

    def __init__(self, app: App, surroundings: Surroundings, *, here: bool = False) -> None:
        self._app = app
        self._here = here
        self._surroundings = surroundings
        # Two threads may ask for the job of one handler at once.
        self._turn = threading.Lock()

    def of(self, held: Held) -> Job:
        """Return the job of an attempt."""
        with self._turn:
            job = held.attempt.job
            if job is None:
                task = self._app.tasks.get(held.row.task)
                job = held.attempt.job = _make_job(held, self._surroundings, None if task is None else task.hooks.codec)
                job._state.is_sync = self._here and task is not None and not task.is_async
        if (stop := held.attempt.stop) is not None:
            # Asked to stop before there was a job to raise its flag.
            job.cancelled.raise_it(stop.reason)
        return job


def _make_job(held: Held, surroundings: Surroundings, codec: Codec | None) -> Job:
    """Return the Job of an attempt. The results of its steps are written and read by `codec`."""
    row, args = held.row, (held.attempt.decoded or held).args
    return Job(
        row.id,
        row.task,
        {} if isinstance(args, Unreadable) else args,
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


def _make_state(held: Held, surroundings: Surroundings, codec: Codec | None) -> Execution:
    timeout, started = held.timeout, held.attempt.started
    ends_at = None if timeout is None or started is None else started + timeout
    state = Execution(surroundings, Flag(), ends_at, stores_result=held.row.store_result)
    state.others = [member.pair for member in held.members]
    if codec is not None:
        state.encode = codec.encode
        state.decode = codec.decode
    return state
