"""Tasks: named functions, and the App that knows them."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

from pgqueue import queries
from pgqueue.drivers import AsyncConnection, SyncConnection
from pgqueue.enqueue import Target, one, one_outcome, send
from pgqueue.enqueued import Enqueued
from pgqueue.errors import ConfigError, DuplicateTask, InvalidArgument, InvalidPayload
from pgqueue.hooks import Hooks
from pgqueue.job import Job
from pgqueue.middleware import Codec, EnqueueMiddleware, definition
from pgqueue.queries import check_schedule_options
from pgqueue.typed import TypedArguments

P = ParamSpec("P")
R = TypeVar("R")

# Called with the exception and the retries so far. Returns the delay, in seconds or as a timedelta; the name of a
# policy; False: dead at once; None: as the task's policy says.
RetryRule: TypeAlias = Callable[[Any, int], timedelta | float | str | bool | None]


# Options that the worker goes by and the database is not told of.
_IN_PYTHON = ("retry", "discard_on", "shutdown_timeout", "on_shutdown", "validate")


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What the code says of a task. None leaves it to the queue, then to the defaults.

    An operator's columns in `pgqueue.tasks` win over these; a job's own options win over both.

    queue             queue of jobs that name none
    priority          -100 to 100, higher runs first
    max_attempts      tries before a job is dead; default 11
    retry_policy      n = retries so far: "fixed"; "exponential" (the default: retry_delay + n^5 seconds); "sidekiq"
                      (retry_delay + n^4 + random(30) * (n + 1) seconds); "doubling" (any part of retry_delay * 2^n);
                      "list" (retry_delays in turn, the last for ever)
    retry_delay       default 30 seconds; 15 for "sidekiq"
    retry_jitter      how much of a delay is random, 0 to 1; default 0.1, or 1 for "sidekiq" and "doubling"
    retry_cap         longest delay before jitter; default 1 hour for "doubling"
    retry_delays      of the policy "list"
    retry_queue       where a job goes when it fails
    retry             a rule in Python, called in the worker with the exception and n: `lambda exc, n: ...` returns
                      seconds, a timedelta, the name of a policy, False (dead at once) or None (as retry_policy says).
                      Should it raise, retry_policy decides and the job's errors say why. It must return soon: that of
                      an async task is called on the event loop. After a timeout it gets a TimeoutError, unless the
                      handler had to be left behind with its process
    discard_on        exceptions after which a job is dead at once
    expires_in        how long after its run_at a job may still start
    accumulate        all due payloads of a key go to one call, by score: `def handle(payloads: dict[str, list])`
    batch_size        how many keys one call of an accumulating task gets; default 1
    timeout           how long one try may take. An async handler is cancelled then; a sync one is told by
                      job.cancelled, and under a supervisor its process is replaced should it go on for 5 s more
    max_crashes       how many workers may die while they run a job before it is dead; default 3
    store_result      whether history keeps what the function returns, which must be JSON; default False
    shutdown_timeout  how long a job may go on when its worker shuts down, in seconds; at most, and by default, as long
                      as the worker's own
    on_shutdown       what becomes of a job that does not end by then: "fail" (a try that counts; the default) or
                      "release" (it runs again at once, uncounted)
    validate          check and convert arguments by the function's annotations, with pydantic (the extra `pydantic`):
                      when enqueued through the task, and when read. What does not fit fails the job: InvalidPayload
    retention_*       how long history keeps jobs that ended so; zero keeps no row
    """

    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    retry_policy: str | None = None
    retry_delay: timedelta | str | None = None
    retry_jitter: float | None = None
    expires_in: timedelta | str | None = None
    retention_succeeded: timedelta | str | None = None
    retention_cancelled: timedelta | str | None = None
    retention_dead: timedelta | str | None = None
    retry_cap: timedelta | str | None = None
    retry_delays: Sequence[timedelta | str] | None = None
    retry_queue: str | None = None
    accumulate: bool | None = None
    batch_size: int | None = None
    timeout: timedelta | str | None = None
    max_crashes: int | None = None
    store_result: bool | None = None
    shutdown_timeout: float | None = None
    on_shutdown: Literal["fail", "release"] = "fail"
    retry: RetryRule | None = None
    discard_on: type[BaseException] | tuple[type[BaseException], ...] = ()
    validate: bool = False

    def __post_init__(self) -> None:
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

    def as_mapping(self) -> dict[str, object]:
        """Return the options that are set and that the database is told of."""
        values = ((name, getattr(self, name)) for name in self.__slots__ if name not in _IN_PYTHON)
        return {name: value for name, value in values if value is not None}


class Task(Target, Generic[P, R]):
    """A named function. Call it to run it here and now; `enqueue` it to have a worker run it.

    `name` is what the database knows; renaming or moving the function changes nothing as long as the name stays. The
    function may be a method of an object that carries what it needs (a database, an API client), or such an object
    with a `__call__`.
    """

    def __init__(self, name: str, function: Callable[P, R], options: TaskOptions, hooks: Hooks | None = None) -> None:
        self.name = name
        self.hooks = hooks or Hooks()
        self.function = function
        self.options = options
        written = definition(function)
        if inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written):
            raise ConfigError(
                f"task {name} is a generator: calling it runs nothing of it",
                hint="let it return instead of yield",
            )
        self.is_async = inspect.iscoroutinefunction(written)
        self.job_parameter = _job_parameter(function)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        parameters = inspect.signature(function).parameters.values()
        self._signature = inspect.Signature([each for each in parameters if each.name != self.job_parameter])
        self.payloads_parameter = _payloads_parameter(name, self._signature) if options.accumulate else None
        self.typed = (
            TypedArguments(name, function, self._signature, self.payloads_parameter) if options.validate else None
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    @overload
    def enqueue(self, connection: SyncConnection, /, *args: Any, **kwargs: Any) -> int: ...
    @overload
    def enqueue(self, connection: AsyncConnection, /, *args: Any, **kwargs: Any) -> Awaitable[int]: ...
    def enqueue(
        self, connection: SyncConnection | AsyncConnection, /, *args: Any, **kwargs: Any
    ) -> int | Awaitable[int]:
        """Enqueue a call of this task with these arguments and return the job's id, as `pgqueue.enqueue` does.

        Raises InvalidArgument when the arguments do not fit the function; then nothing was enqueued.

            send_email.enqueue(connection, "a@b.c", subject="Hello")
        """
        return self.using().enqueue(connection, *args, **kwargs)

    @overload
    def enqueue_many(self, connection: SyncConnection, /, args: Iterable[Mapping[str, Any]]) -> list[int]: ...
    @overload
    def enqueue_many(
        self, connection: AsyncConnection, /, args: Iterable[Mapping[str, Any]]
    ) -> Awaitable[list[int]]: ...
    def enqueue_many(
        self,
        connection: SyncConnection | AsyncConnection,
        /,
        args: Iterable[Mapping[str, Any]],
    ) -> list[int] | Awaitable[list[int]]:
        """Enqueue one call for each mapping of keyword arguments, in one statement; see `pgqueue.enqueue_many`."""
        return self.using().enqueue_many(connection, args)

    def using(self, **options: Any) -> TaskCall:
        """Return this task with options for its next jobs: queue, delay, key, dedupe, ... as `pgqueue.enqueue`.

        send_email.using(queue="critical", delay=timedelta(minutes=5)).enqueue(connection, "a@b.c")
        """
        return TaskCall(self, options)

    def middleware(self) -> Sequence[EnqueueMiddleware]:
        """Return what its App has put around enqueue."""
        return self.hooks.around_enqueue()

    def codec(self) -> Codec | None:
        """Return its App's codec."""
        return self.hooks.codec

    def dump(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Check arguments by the annotations and write them as JSON has them, if the task asks for it."""
        return dict(args) if self.typed is None else self.typed.dump(args)

    def decode(self, args: dict[str, Any]) -> dict[str, Any]:
        """Read what a job holds with the App's codec. Raises InvalidPayload."""
        codec = self.hooks.codec
        if codec is None:
            return args
        try:
            return codec.decode(args)
        except Exception as error:
            raise InvalidPayload(
                f"the codec cannot read the payload of task {self.name}: {type(error).__name__}: {error}",
                hint="enqueue it through the task, with the codec and the keys of this worker",
            ) from error

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Name positional arguments as the function does, and check them. Raises InvalidArgument when they do not fit.

        Those of a task with validate=True are returned as JSON has them.
        """
        if self.payloads_parameter is not None and self.typed is not None and len(args) == 1 and not kwargs:
            return self.typed.dump(args[0])
        named = self._named(args, kwargs)
        return named if self.typed is None else self.typed.dump(named)

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if self.payloads_parameter is not None:
            return _payload(self.name, args, kwargs)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArgument(
                f"these arguments do not fit task {self.name}{self._signature}: {error}",
                hint="give the arguments that the function takes",
            ) from error
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                named.update(value)
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                raise InvalidArgument(
                    f"task {self.name} takes *{name}, and arguments of a job have names",
                    hint=f"give it a parameter that takes a list instead of *{name}",
                )
            else:
                named[name] = value
        return named


@dataclass(frozen=True, slots=True)
class TaskCall:
    """A task with options for the jobs to come. Made by `Task.using`."""

    task: Task[Any, Any]
    options: Mapping[str, Any]

    @overload
    def enqueue(self, connection: SyncConnection, /, *args: Any, **kwargs: Any) -> int: ...
    @overload
    def enqueue(self, connection: AsyncConnection, /, *args: Any, **kwargs: Any) -> Awaitable[int]: ...
    def enqueue(
        self, connection: SyncConnection | AsyncConnection, /, *args: Any, **kwargs: Any
    ) -> int | Awaitable[int]:
        """Enqueue a call with these arguments; see `Task.enqueue`."""
        return send(connection, self.task, [self.task.bind(*args, **kwargs)], self.options, one)

    @overload
    def enqueue_outcome(self, connection: SyncConnection, /, *args: Any, **kwargs: Any) -> Enqueued: ...
    @overload
    def enqueue_outcome(self, connection: AsyncConnection, /, *args: Any, **kwargs: Any) -> Awaitable[Enqueued]: ...
    def enqueue_outcome(
        self, connection: SyncConnection | AsyncConnection, /, *args: Any, **kwargs: Any
    ) -> Enqueued | Awaitable[Enqueued]:
        """Enqueue a call with these arguments and say what became of it; see `pgqueue.enqueue_outcome`."""
        return send(connection, self.task, [self.task.bind(*args, **kwargs)], self.options, one_outcome)

    def job(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return a call with these arguments as a job for `pgqueue.enqueue_batch`.

        enqueue_batch(connection, [send_email.using(dedupe=to).job(to) for to in people])
        """
        codec = self.task.codec()
        bound = self.task.bind(*args, **kwargs)
        return {"task": self.task.name, "args": bound if codec is None else codec.encode(bound), **self.options}

    @overload
    def enqueue_many(self, connection: SyncConnection, /, args: Iterable[Mapping[str, Any]]) -> list[int]: ...
    @overload
    def enqueue_many(
        self, connection: AsyncConnection, /, args: Iterable[Mapping[str, Any]]
    ) -> Awaitable[list[int]]: ...
    def enqueue_many(
        self,
        connection: SyncConnection | AsyncConnection,
        /,
        args: Iterable[Mapping[str, Any]],
    ) -> list[int] | Awaitable[list[int]]:
        """Enqueue one call for each mapping of keyword arguments; see `Task.enqueue_many`."""
        bound = [self.task.bind(**each) for each in args]
        return send(connection, self.task, bound, self.options, queries.enqueue_many)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A task to be enqueued by the clock. Made by `App.schedule`; written when a worker starts, if it changed."""

    name: str
    task: str
    expression: str | None
    args: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(slots=True)
class App(Hooks):
    """The tasks of an application, their schedules, and what stands around them. A worker is started with one.

    app = App()

    @app.task(queue="mail", max_attempts=5)
    async def send_email(to: str) -> None: ...

    @app.schedule("30 2 * * *", timezone="Europe/Berlin")
    @app.task
    async def nightly_report() -> None: ...
    """

    tasks: dict[str, Task[Any, Any]] = field(default_factory=dict)
    schedules: dict[str, Schedule] = field(default_factory=dict)

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, function: None = None, /, *, name: str | None = None, **options: Any
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self, function: Callable[P, R] | None = None, /, *, name: str | None = None, **options: Any
    ) -> Task[P, R] | Callable[[Callable[P, R]], Task[P, R]]:
        """Declare a function as a task, under `name` or the function's own.

        As a decorator, or called with a method or an object that carries its services:

            app.task(Mailer(smtp).send)
            app.task(name="charge")(Charge(api))      # an object with __call__ needs a name

        The options are those of `TaskOptions`. Raises DuplicateTask when the name is taken, ConfigError when it is
        empty or longer than 128 bytes or an option is unusable, TypeError for an unknown option.
        """
        declared = TaskOptions(**options)

        def declare(function: Callable[P, R]) -> Task[P, R]:
            task = Task(name if name is not None else getattr(function, "__name__", ""), function, declared, self)
            if not 1 <= len(task.name.encode()) <= 128:
                raise ConfigError(f"a task's name must have 1 to 128 bytes: {task.name!r}")
            if task.name in self.tasks:
                raise _duplicate(task.name, self.tasks[task.name].function, function)
            self.tasks[task.name] = task
            return task

        return declare if function is None else declare(function)

    def schedule(
        self,
        expression: str | None = None,
        /,
        *,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Callable[[Task[P, R]], Task[P, R]]:
        """Have a task enqueued by the clock, under `name` or the task's own: by a cron expression, or `every=`.

        The options are those of the SQL function `schedule`: every, timezone, catch_up, overlap, jitter, queue,
        priority, ... `args` are the task's keyword arguments. Several may stand on one task, under different names.
        Raises DuplicateTask when the name is taken, ConfigError for neither or both of expression and every,
        InvalidArgument when the arguments do not fit, TypeError for an unknown option. What is wrong with the
        expression, the database says when a worker starts.
        """
        check_schedule_options(options)
        if (expression is None) == (options.get("every") is None):
            raise ConfigError("a schedule takes either a cron expression or every=")

        def declare(task: Task[P, R]) -> Task[P, R]:
            if not isinstance(task, Task):
                raise ConfigError("only a task has a schedule", hint="put @app.schedule(...) above @app.task")
            chosen = name if name is not None else task.name
            if chosen in self.schedules:
                raise DuplicateTask(
                    f"two schedules are declared as {chosen!r}", hint="give one of them another: name=..."
                )
            self.schedules[chosen] = Schedule(chosen, task.name, expression, task.bind(**(args or {})), options)
            return task

        return declare

    def include(self, other: App) -> None:
        """Take in the tasks and schedules of another App. Raises DuplicateTask when both have one of the same name.

        What it declared around execution, and its hooks, come with it, inside of our own. Its codec and what it put
        around enqueue stay with its own tasks.
        """
        self.include_hooks(other)
        for schedule in other.schedules.values():
            if self.schedules.setdefault(schedule.name, schedule) is not schedule:
                raise DuplicateTask(f"two schedules are declared as {schedule.name!r}", hint="rename one of them")
        for name, task in other.tasks.items():
            mine = self.tasks.setdefault(name, task)
            if mine is not task:
                raise _duplicate(name, mine.function, task.function)


def _duplicate(name: str, one: Callable[..., Any], other: Callable[..., Any]) -> DuplicateTask:
    return DuplicateTask(
        f"two functions are declared as task {name!r}: {_where(one)} and {_where(other)}",
        hint="give one of them another name: @app.task(name=...)",
    )


def _where(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _payloads_parameter(task: str, signature: inspect.Signature) -> str:
    if len(signature.parameters) != 1:
        raise ConfigError(
            f"task {task} accumulates, and its function takes {signature}",
            hint="give it one parameter, a dict of key to list of payloads (and one annotated Job, if it needs it)",
        )
    return next(iter(signature.parameters))


def _payload(task: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if len(args) == 1 and isinstance(args[0], Mapping) and not kwargs:
        return dict(args[0])
    if args:
        raise InvalidArgument(
            f"task {task} accumulates payloads, and got {len(args)} positional arguments",
            hint="give a payload as one mapping or as keyword arguments",
        )
    return dict(kwargs)


def _job_parameter(function: Callable[..., Any]) -> str | None:
    written = definition(function)
    try:
        hints = typing.get_type_hints(written)
    except Exception:
        # Annotations that name what cannot be imported here: compare them as they are written.
        hints = getattr(written, "__annotations__", {})
    for name, hint in hints.items():
        if name != "return" and (hint is Job or hint in ("Job", "pgqueue.Job")):
            return name
    return None
