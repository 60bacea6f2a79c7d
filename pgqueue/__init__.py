"""A job queue that needs nothing but PostgreSQL.

    from pgqueue import App, enqueue

    app = App()

    @app.task
    def greet(name: str) -> None:
        print("Hello", name)

    enqueue(connection, "greet", {"name": "Ada"})     # in the connection's own transaction

then `pgqueue worker -r module:app`.

Names that most programs use are here, the others in their modules: `pgqueue.errors`, `pgqueue.hooks` (Dead),
`pgqueue.middleware` (Enqueuing).
"""

__version__ = "0.1.0"

import importlib
from typing import TYPE_CHECKING, Any

from pgqueue._options import TaskOptions
from pgqueue.app import App
from pgqueue.enqueue import enqueue, enqueue_batch, enqueue_copy, enqueue_many, enqueue_outcome
from pgqueue.errors import PgQueueError
from pgqueue.hooks import Event
from pgqueue.job import Job, current_job
from pgqueue.middleware import Codec
from pgqueue.signals import Cancel, Discard, Retry, Snooze, Throttled
from pgqueue.tasks import Task
from pgqueue.wait import Outcome, wait
from pgqueue.workflows import chain, emit_event

if TYPE_CHECKING:
    from pgqueue.config import WorkerConfig
    from pgqueue.lifespan import worker_lifespan
    from pgqueue.schema.migrate import migrate
    from pgqueue.worker import Worker

__all__ = [
    "App",
    "Cancel",
    "Codec",
    "Discard",
    "Event",
    "Job",
    "Outcome",
    "PgQueueError",
    "Retry",
    "Snooze",
    "Task",
    "TaskOptions",
    "Throttled",
    "Worker",
    "WorkerConfig",
    "chain",
    "current_job",
    "emit_event",
    "enqueue",
    "enqueue_batch",
    "enqueue_copy",
    "enqueue_many",
    "enqueue_outcome",
    "migrate",
    "wait",
    "worker_lifespan",
]


# Producers pay neither for the worker nor for Alembic.
_ON_DEMAND = {
    "Worker": "pgqueue.worker",
    "WorkerConfig": "pgqueue.config",
    "migrate": "pgqueue.schema.migrate",
    "worker_lifespan": "pgqueue.lifespan",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ON_DEMAND[name]), name)
