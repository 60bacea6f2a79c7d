"""The options of jobs, tasks and schedules, as type checkers know them.

`enqueue`, `Task.using` and the rest take `JobOptions`, `@app.task` takes `TaskSettings`, `@app.schedule` takes
`ScheduleSettings`. Annotate a wrapper of your own with them:

    def later(connection: psycopg.Connection, task: str, **options: Unpack[JobOptions]) -> int:
        return enqueue(connection, task, delay="1 hour", **options)
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from pgqueue.errors import ConfigError, InvalidArgument

# An interval: a timedelta, seconds, or a text that PostgreSQL reads, such as "5 min".
Interval: TypeAlias = timedelta | float | str

RetryPolicy: TypeAlias = Literal["fixed", "exponential", "sidekiq", "doubling", "list"]

# Called with the exception and the number of retries so far. Returns the delay, in seconds or as a timedelta; the name
# of a policy; False: dead at once; None: the task's policy decides.
RetryRule: TypeAlias = Callable[[Any, int], timedelta | float | str | bool | None]


class JobOptions(TypedDict, total=False):
    """Options of one job. None, or left out: the task decides, then the queue."""

    queue: str | None
    priority: int | None
    run_at: datetime | str | None
    delay: Interval | None
    expires_in: Interval | None
    timeout: Interval | None
    max_attempts: int | None
    key: str | None
    score: int | float | Decimal | None
    dedupe: str | None
    dedupe_for: Interval | None
    on_conflict: Literal["skip", "replace", "merge", "debounce", "supersede", "raise"] | None
    depends_on: Sequence[int] | None
    headers: Mapping[str, Any] | None
    tags: Iterable[str] | None
    retention: Interval | None
    retry_policy: RetryPolicy | None
    retry_delay: Interval | None
    retry_queue: str | None
    limit_key: str | None
    debounce_max: Interval | None
    run_if: Literal["succeeded", "finished", "failed"] | None
    group_id: int | None
    retry_cap: Interval | None
    cost: int | None


class TaskSettings(TypedDict, total=False):
    """Options of a task, as `@app.task` takes them. `TaskOptions` explains each."""

    queue: str | None
    priority: int | None
    max_attempts: int | None
    retry_policy: RetryPolicy | None
    retry_delay: Interval | None
    retry_jitter: float | None
    expires_in: Interval | None
    retention_succeeded: Interval | None
    retention_cancelled: Interval | None
    retention_dead: Interval | None
    retry_cap: Interval | None
    retry_delays: Sequence[Interval] | None
    retry_queue: str | None
    batch_size: int | None
    timeout: Interval | None
    max_crashes: int | None
    store_result: bool | None
    docs: str | None
    owner: str | None
    shutdown_timeout: float | None
    on_shutdown: Literal["fail", "release"]
    retry: RetryRule | None
    discard_on: type[BaseException] | tuple[type[BaseException], ...]
    validate: bool


class ScheduleSettings(TypedDict, total=False):
    """Options of a schedule, as `@app.schedule` takes them."""

    every: Interval | None
    timezone: str | None
    catch_up: Literal["skip", "last", "all"] | None
    catch_up_cap: int | None
    overlap: Literal["start", "skip"] | None
    jitter: Interval | None
    queue: str | None
    priority: int | None
    max_attempts: int | None
    expires_in: Interval | None
    headers: Mapping[str, Any] | None
    tags: Iterable[str] | None
    retention: Interval | None


# Options that the worker applies and the database does not store.
_IN_PYTHON = ("retry", "discard_on", "shutdown_timeout", "on_shutdown", "validate")


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options that code declares for a task. None: the queue decides, then the default.

    An operator's columns in `pgqueue.tasks` override these; a job's own options override both.

    queue             queue of jobs enqueued without one
    priority          -100 to 100, higher runs first
    max_attempts      attempts before a job is dead; default 11
    retry_policy      with n retries so far: "fixed"; "exponential" (the default: retry_delay + n^5 seconds); "sidekiq"
                      (retry_delay + n^4 + random(30) * (n + 1) seconds); "doubling" (a random part of
                      retry_delay * 2^n); "list" (retry_delays one after the other, then the last one again)
    retry_delay       default 30 seconds; 15 for "sidekiq"
    retry_jitter      random share of a delay, 0 to 1; default 0.1, or 1 for "sidekiq" and "doubling"
    retry_cap         longest delay before jitter; default 1 hour for "doubling", 1 day for "exponential" and "sidekiq"
    retry_delays      the delays of the policy "list"
    retry_queue       queue of a job that failed
    retry             a rule in Python, called in the worker with the exception and n: `lambda exc, n: ...` returns
                      seconds, a timedelta, the name of a policy, False (dead at once) or None (retry_policy decides).
                      If it raises, retry_policy decides, and the error is stored with the job. It must return soon:
                      for an async task it runs on the event loop. After a timeout it gets a TimeoutError, unless the
                      whole process was replaced
    discard_on        exceptions after which a job is dead at once
    expires_in        how long after its run_at a job may still start
    accumulate        give all due payloads of a key to one call, by score: `def handle(payloads: dict[str, list])`
    batch_size        keys in one call of an accumulating task; default 1
    timeout           how long one attempt may take. Then an async handler is cancelled, and job.cancelled is raised for
                      a sync one; under a supervisor its process is replaced if it continues for 5 s more
    max_crashes       workers that may die while they run a job before it is dead; default 3
    store_result      whether history keeps the return value, which must be JSON; default False
    docs              the address of the documentation of the task, such as a runbook; the pages link to it
    owner             who is responsible for the task: shown on the pages, and a label of pgqueue_task_info
    shutdown_timeout  how long a job may run when its worker shuts down, in seconds; the default, and the maximum, is
                      that of the worker
    on_shutdown       what happens to a job that does not end by then: "fail" (the attempt counts; the default) or
                      "release" (it runs again at once; the attempt does not count)
    validate          check all arguments by the function's annotations, with pydantic (the extra `pydantic`), when they
                      are enqueued through the task and when the job runs; without it, only arguments that JSON does
                      not keep are converted. If they do not fit, the job fails with InvalidPayload
    retention_*       how long history keeps jobs that ended in this state; zero keeps no row
    """

    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    retry_policy: str | None = None
    retry_delay: Interval | None = None
    retry_jitter: float | None = None
    expires_in: Interval | None = None
    retention_succeeded: Interval | None = None
    retention_cancelled: Interval | None = None
    retention_dead: Interval | None = None
    retry_cap: Interval | None = None
    retry_delays: Sequence[Interval] | None = None
    retry_queue: str | None = None
    accumulate: bool | None = None
    batch_size: int | None = None
    timeout: Interval | None = None
    max_crashes: int | None = None
    store_result: bool | None = None
    docs: str | None = None
    owner: str | None = None
    shutdown_timeout: float | None = None
    on_shutdown: Literal["fail", "release"] = "fail"
    retry: RetryRule | None = None
    discard_on: type[BaseException] | tuple[type[BaseException], ...] = ()
    validate: bool = False

    @classmethod
    def check_names(cls, options: Iterable[str]) -> None:
        """Raise TypeError for an option that tasks do not have."""
        for name in options:
            if name not in cls.__slots__:
                raise no_option("a task", name, cls.__slots__)

    def __post_init__(self) -> None:
        for name, (low, high) in _NUMBERS.items():
            _check_number(name, getattr(self, name), low, high)
        for name, longest in _INTERVALS.items():
            object.__setattr__(self, name, as_interval(name, getattr(self, name)))
            check_interval(name, getattr(self, name), longest)
        for name in ("queue", "retry_queue"):
            _check_name(name, getattr(self, name))
        if self.docs is not None and not re.fullmatch(r"https?://[^\s\x00-\x1f\x7f]{1,1990}", self.docs):
            raise ConfigError(f"docs is {self.docs!r}", hint='give an address, such as "https://wiki.example.com/mail"')
        if self.owner is not None and not 1 <= len(self.owner) <= 128:
            raise ConfigError(f"owner is {self.owner!r}", hint="give a name of 1 to 128 characters")
        self._check_policy()
        if self.retry is not None and (not callable(self.retry) or inspect.iscoroutinefunction(self.retry)):
            raise ConfigError(
                f"retry must be a plain function of the exception and the retries so far: {self.retry!r}",
                hint="give retry=lambda exc, n: ..., or the name of a policy as retry_policy",
            )
        classes: object = self.discard_on if isinstance(self.discard_on, tuple) else (self.discard_on,)
        if not isinstance(classes, tuple) or not all(
            isinstance(each, type) and issubclass(each, BaseException) for each in classes
        ):
            raise ConfigError(
                f"discard_on must be an exception class or a tuple of them: {self.discard_on!r}",
                hint="give discard_on=(ValueError, ...)",
            )
        if self.on_shutdown not in ("fail", "release"):
            raise ConfigError(f"on_shutdown is {self.on_shutdown!r}", hint='give "fail" or "release"')
        if self.shutdown_timeout is not None and not 0 <= self.shutdown_timeout < math.inf:
            raise ConfigError(f"shutdown_timeout is {self.shutdown_timeout}", hint="give seconds, zero or more")

    def _check_policy(self) -> None:
        _check_policy_name(self.retry_policy)
        if self.retry_delays is not None and not isinstance(self.retry_delays, str):
            in_order = [as_interval("retry_delays", each) for each in self.retry_delays]
            object.__setattr__(self, "retry_delays", in_order)
        delays = self.retry_delays
        if delays is not None and (isinstance(delays, str) or not 1 <= len(delays) <= 1000):
            raise ConfigError(f"retry_delays is {delays!r}", hint='give 1 to 1000 intervals, such as ["10 s", "1 min"]')
        for delay in delays or ():
            check_interval("retry_delays", delay, timedelta(days=366))
        if self.retry_policy == "list" and delays is None:
            raise ConfigError('retry_policy is "list" without retry_delays', hint='give retry_delays=["10 s", "1 min"]')

    def as_mapping(self) -> dict[str, object]:
        """Return the options that are set and that the database stores."""
        values = ((name, getattr(self, name)) for name in self.__slots__ if name not in _IN_PYTHON)
        return {name: value for name, value in values if value is not None}

    def at_enqueue(self) -> dict[str, object]:
        """Return the options that are set and that an enqueue applies, in JSON form.

        The others are applied by a worker, which has declared the task by then.
        """
        options = self.as_mapping()
        if isinstance(self.expires_in, timedelta):
            options["expires_in"] = timedelta_text(self.expires_in)
        return {name: options[name] for name in ("queue", "priority", "expires_in", "accumulate") if name in options}


def timedelta_text(value: timedelta) -> str:
    """Write it as text that each IntervalStyle reads the same; no part is beyond 32 bits, for PostgreSQL 14."""
    return f"{value.days:+} days {value.seconds:+} s {value.microseconds:+} us"


_NUMBERS: Mapping[str, tuple[float, float]] = {
    "priority": (-100, 100),
    "max_attempts": (1, 100_000),
    "retry_jitter": (0, 1),
    "batch_size": (1, 1000),
    "max_crashes": (1, 1000),
}

# The longest that each may be.
_INTERVALS: Mapping[str, timedelta] = {
    "retry_delay": timedelta(days=366),
    "retry_cap": timedelta(days=366),
    "expires_in": timedelta.max,
    "timeout": timedelta(days=7),
    "retention_succeeded": timedelta(days=731),
    "retention_cancelled": timedelta(days=731),
    "retention_dead": timedelta(days=731),
}

# The units of PostgreSQL's interval input: https://www.postgresql.org/docs/current/datatype-datetime.html
_UNITS = re.compile(
    "us|usecs?|microseconds?|ms|msecs?|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?"
    "|mons?|months?|y|yrs?|years?|dec|decs|decades?|c|cent|century|centuries|mils?|millennium|millennia|ago"
)


def as_interval(name: str, value: Any) -> Any:
    """Return seconds as a timedelta, and any other value as it is. Raises ConfigError for a bool, or no finite number.

    as_interval("delay", 20.5)    # timedelta(seconds=20.5)
    """
    if not isinstance(value, int | float):
        return value
    if isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"{name} is {value}", hint=_ASKED_FOR)
    try:
        return timedelta(seconds=value)
    except OverflowError:
        raise ConfigError(f"{name} is {value} seconds", hint="give less than three million years") from None


_ASKED_FOR = 'give seconds, a timedelta, or a text such as "5 min"'


def check_interval(name: str, value: object, longest: timedelta = timedelta.max) -> None:
    """Raise ConfigError for a text that PostgreSQL does not read as an interval, or for a length out of bounds.

    A text is checked for its form and its units; its length is PostgreSQL's to check.
    """
    if value is None:
        return
    value = as_interval(name, value)
    if isinstance(value, timedelta):
        if not timedelta(0) <= value <= longest:
            raise ConfigError(f"{name} is {value}", hint=f"give from zero to {longest.days} days")
        return
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r}", hint=_ASKED_FOR)
    words = re.findall(r"[^\W\d_]+", value.lower())
    iso = value.strip().upper().startswith("P")
    if not re.search(r"\d", value) or not (iso or all(map(_UNITS.fullmatch, words))):
        raise ConfigError(f"{name} is {value!r}, which is not an interval", hint=_ASKED_FOR)


def is_age(text: str) -> bool:
    """Return whether a text says how long ago something was, "2 hours" or "2 hours ago", and not when: "1 dec 2026".

    PostgreSQL reads dec as a decade, too.
    """
    words = re.findall(r"[^\W\d_]+", text.lower())
    begins = re.match(r"\s*\d+(\.\d+)?\s*[a-z]", text, re.IGNORECASE)
    ends = re.search(r"([a-z]|:\d\d(\.\d+)?)\s*$", text, re.IGNORECASE)
    return bool(begins and ends and "dec" not in words and all(map(_UNITS.fullmatch, words)))


# What Celery and Django call an option, and what it is called here.
CELERY = {
    "countdown": "delay",
    "eta": "run_at",
    "run_after": "run_at",
    "queue_name": "queue",
    "expires": "expires_in",
    "max_retries": "max_attempts",
    "default_retry_delay": "retry_delay",
    "retry_backoff": "retry_policy",
    "retry_backoff_max": "retry_cap",
    "time_limit": "timeout",
    "soft_time_limit": "timeout",
    "dont_autoretry_for": "discard_on",
}

# Options of Celery that have no counterpart here, and what there is instead.
_INSTEAD = {
    "rate_limit": "a limit of the queue holds for all workers; set_limit() sets it: pgqueue limits set",
    "bind": "annotate a parameter of the function as Job, and it receives the job",
    "autoretry_for": "every exception is retried, except those that discard_on names",
    "retry_kwargs": "give max_attempts, retry_policy and retry_delay as options of their own",
    "ignore_result": "a result is kept only for a task with store_result=True",
    "acks_late": "a job ends after its handler has returned, and runs again if its worker dies",
    "task_id": "give dedupe a text of your own; a second job with the same text is not enqueued",
    "link": "enqueue a chain: chain(connection, first.job(...), second.job(...))",
    "link_error": 'enqueue a second job with depends_on=[id] and run_if="failed"',
    "serializer": "arguments and results are stored as JSON",
}


def no_option(
    of: str,
    name: str,
    known: Collection[str],
    called: Mapping[str, str] = MappingProxyType({}),
    instead: Mapping[str, str] = MappingProxyType({}),
) -> TypeError:
    """Return the error for an option that `of` does not have: with the one that was meant, else with all it has.

    `called` and `instead` are the names and the answers of Django, where they differ.
    """
    said = f"{of} has no option {name!r}"
    ours = CELERY.get(name, name)
    here = called.get(ours, ours)
    if name in _INSTEAD:
        return TypeError(f"{said}: {instead.get(name, _INSTEAD[name])}")
    if here in known:
        return TypeError(
            f"{said}: here it is {here}{', which counts the first attempt, too' if name == 'max_retries' else ''}"
        )
    if ours in JobOptions.__annotations__:
        return TypeError(f"{said}: it is an option of a job, as in task.using({here}=...).enqueue(...)")
    return _nearest(said, name, known)


def no_field(of: str, name: str, known: Collection[str]) -> TypeError:
    """Return the error for a field that `of` does not have: with the one that was meant, else with all it has."""
    ours = CELERY.get(name, name)
    said = f"{of} has no {name!r}"
    return TypeError(f"{said}: here it is {ours}") if ours in known else _nearest(said, name, known)


def _nearest(said: str, name: str, known: Collection[str]) -> TypeError:
    # Imported here: only a mistake needs it.
    from difflib import get_close_matches  # noqa: PLC0415

    near = get_close_matches(name, known, 1)
    return TypeError(f"{said}: did you mean {near[0]}?" if near else f"{said}; it has {', '.join(known)}")


def check_job_options(options: Mapping[str, object]) -> None:
    """Raise TypeError for an option that jobs do not have, and InvalidArgument for a value that it cannot have."""
    for name, value in options.items():
        if name not in JobOptions.__annotations__:
            raise no_option("a job", name, JobOptions.__annotations__)
        try:
            if name in ("priority", "max_attempts"):
                _check_number(name, value, *_NUMBERS[name])
            elif name in _JOB_INTERVALS and isinstance(value, str | int | float):
                check_interval(name, value)
            elif name == "retry_policy":
                _check_policy_name(value, besides="list")
            elif name == "run_at" and isinstance(value, date) and not isinstance(value, datetime):
                raise ConfigError(f"run_at is the day {value}", hint="give an instant: a datetime with its time zone")
        except ConfigError as error:
            raise InvalidArgument(error.message, hint=error.hint) from None


_JOB_INTERVALS = (
    "delay",
    "expires_in",
    "timeout",
    "dedupe_for",
    "retention",
    "retry_delay",
    "retry_cap",
    "debounce_max",
)


# For what Celery calls a retry policy, a mapping.
POLICY_IN_PARTS = 'the rest are options of their own: retry_policy="fixed", retry_delay=30, max_attempts=5'


def _check_policy_name(value: object, besides: str = "") -> None:
    policies = [each for each in get_args(RetryPolicy) if each != besides]
    if value is None or (isinstance(value, str) and value in policies):
        return
    hint = f"give one of {', '.join(policies)}"
    if isinstance(value, dict):
        hint += f"; {POLICY_IN_PARTS}"
    elif value == besides:
        hint += f"; {besides} is an option of the task"
    raise ConfigError(f"retry_policy is {value!r}", hint=hint)


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if value is None:
        return
    whole = name != "retry_jitter"
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high:  # type: ignore[operator]
        kind = "a whole number" if whole else "a number"
        raise ConfigError(f"{name} is {value!r}", hint=f"give {kind} from {low} to {high}")


def _check_name(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not is_name(value)):
        raise ConfigError(f"{name} is {value!r}", hint="give a name of 1 to 128 bytes")


def is_name(value: str) -> bool:
    """Return whether a database takes a text as the name of a task or queue."""
    return 1 <= len(value.encode("utf-8", "surrogatepass")) <= 128 and not re.search(r"[\0\ud800-\udfff]", value)
