"""A job queue that needs nothing but PostgreSQL.

    from pgqueue import App, enqueue

    app = App()

    @app.task
    def greet(name: str) -> None:
        print("Hello", name)

    enqueue(connection, "greet", {"name": "Ada"})     # in the connection's own transaction

then `pgqueue worker -r module:app`.
"""

__version__ = "0.1.0"

from pgqueue.enqueue import enqueue, enqueue_batch, enqueue_copy, enqueue_many, enqueue_outcome
from pgqueue.enqueued import BatchResult, Enqueued
from pgqueue.errors import (
    ConfigError,
    DuplicateJob,
    DuplicateTask,
    InvalidArgument,
    InvalidPayload,
    LeaseLost,
    LockedTooLong,
    MigrationError,
    NotBuiltYet,
    PgQueueError,
    SchemaError,
    UnknownJob,
    WaitedTooLong,
    WrongIsolation,
)
from pgqueue.hooks import Dead, Event
from pgqueue.job import Job, current_job
from pgqueue.middleware import Codec, Enqueuing
from pgqueue.outcome import Outcome, wait
from pgqueue.signals import Cancel, Discard, Interrupted, Retry, Snooze
from pgqueue.tasks import App, Schedule, Task, TaskOptions

__all__ = [
    "App",
    "BatchResult",
    "Cancel",
    "Codec",
    "ConfigError",
    "Dead",
    "Discard",
    "DuplicateJob",
    "DuplicateTask",
    "Enqueued",
    "Enqueuing",
    "Event",
    "Interrupted",
    "InvalidArgument",
    "InvalidPayload",
    "Job",
    "LeaseLost",
    "LockedTooLong",
    "MigrationError",
    "NotBuiltYet",
    "Outcome",
    "PgQueueError",
    "Retry",
    "Schedule",
    "SchemaError",
    "Snooze",
    "Task",
    "TaskOptions",
    "UnknownJob",
    "WaitedTooLong",
    "WrongIsolation",
    "current_job",
    "enqueue",
    "enqueue_batch",
    "enqueue_copy",
    "enqueue_many",
    "enqueue_outcome",
    "wait",
]
