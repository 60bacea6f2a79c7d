"""Every error that pgqueue raises, in one tree.

PgQueueError            itself SQLSTATE 55000: the state of the queue does not allow it; the hint says what to do first
├── ConfigError         a setting, a DSN, a module to load: exit code 2 on the command line
│   ├── EmbeddedError   the private server cannot be started here
│   └── DuplicateTask   two functions under one task name
├── SchemaError         the database does not hold the schema that this version needs
│   └── MigrationError  a migration could not be carried out; nothing was changed
├── AccessDenied        SQLSTATE 42501: the role has no right to do this with the queue
├── InvalidArgument     SQLSTATE 22023: a value that the queue refuses, with a hint
│   └── InvalidPayload  the arguments of a job do not fit its task: its annotations or its codec refuse them
├── UnsupportedOption   SQLSTATE 0A000: this is not supported, such as parents on two shards
├── WrongIsolation      SQLSTATE 25001: reserve or maintain outside READ COMMITTED
├── LockTimeout         SQLSTATE 55P03: another transaction holds the job or dedupe key; nothing was changed
├── DuplicateJob        SQLSTATE 23505: on_conflict="raise", and a job has the dedupe key
├── LeaseLost           the lease was lost before job.transaction() could complete the job; it was rolled back
├── DuplicateStep       two steps of one attempt have the same name
├── EventTimeout        job.wait_event: the event did not come in time
├── JobNotFound         there is no such job, or its history has expired
├── NotCommitted        wait: the connection's own open transaction holds the job, so that it cannot end
└── WaitTimeout         wait: the job has not ended in time; also a TimeoutError
"""

from __future__ import annotations


class PgQueueError(Exception):
    """Base of every error of this package; itself, the state of the queue does not allow a call (SQLSTATE 55000).

    `message` is the problem; `hint` is the next step, or None. `str()` gives both.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}; {self.hint}" if self.hint else message


class ConfigError(PgQueueError):
    """A setting, a DSN or a module to load is wrong. Exit code 2 on the command line."""


class EmbeddedError(ConfigError):
    """The embedded PostgreSQL server cannot be started here."""


class DuplicateTask(ConfigError):
    """Two functions were declared under one task name."""


class SchemaError(PgQueueError):
    """The database does not hold the schema that this version of pgqueue needs."""


class MigrationError(SchemaError):
    """A migration could not be carried out. Nothing was changed."""


class AccessDenied(PgQueueError):
    """The role has no right to do this with the queue (SQLSTATE 42501). The owner grants it: `pgqueue grant`."""


class InvalidArgument(PgQueueError):
    """The queue refused a value (SQLSTATE 22023)."""


class InvalidPayload(InvalidArgument):
    """The arguments of a job do not fit its task. The job fails; its retry policy and `discard_on` apply."""


class UnsupportedOption(PgQueueError):
    """This is not supported, such as parents on two shards (SQLSTATE 0A000)."""


class WrongIsolation(PgQueueError):
    """`reserve` or `maintain` was called outside READ COMMITTED (SQLSTATE 25001)."""


class LockTimeout(PgQueueError):
    """Another transaction holds the job's row, or its dedupe key (SQLSTATE 55P03). Nothing was changed."""


class DuplicateJob(PgQueueError):
    """A job has this dedupe key, and `on_conflict` is "raise" (SQLSTATE 23505). Nothing was enqueued."""


class LeaseLost(PgQueueError):
    """The lease of the job was lost before its own transaction could complete it. The transaction was rolled back."""


class DuplicateStep(PgQueueError):
    """Two steps of one attempt have the same name, so a stored result would be ambiguous."""


class EventTimeout(PgQueueError):
    """The event that a job waited for did not come within the timeout."""


class JobNotFound(PgQueueError):
    """There is no such job, or its history has expired."""


class NotCommitted(PgQueueError):
    """The connection's own open transaction has enqueued or changed the job: no worker sees it before the commit."""


class WaitTimeout(PgQueueError, TimeoutError):
    """The job did not end within the timeout of `wait`."""
