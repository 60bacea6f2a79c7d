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

from pgqueue.enqueue import enqueue, enqueue_batch, enqueue_many, enqueue_outcome
from pgqueue.errors import (
    ConfigError,
    DuplicateJob,
    DuplicateTask,
    InvalidArgument,
    InvalidPayload,
    LockedTooLong,
    MigrationError,
    NotBuiltYet,
    PgQueueError,
    SchemaError,
    WrongIsolation,
)
from pgqueue.hooks import Dead, Event
from pgqueue.job import BatchResult, Enqueued, Job
from pgqueue.middleware import Codec, Enqueuing
from pgqueue.signals import Cancel, Discard, Retry, Snooze
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
    "InvalidArgument",
    "InvalidPayload",
    "Job",
    "LockedTooLong",
    "MigrationError",
    "NotBuiltYet",
    "PgQueueError",
    "Retry",
    "Schedule",
    "SchemaError",
    "Snooze",
    "Task",
    "TaskOptions",
    "WrongIsolation",
    "enqueue",
    "enqueue_batch",
    "enqueue_many",
    "enqueue_outcome",
]
