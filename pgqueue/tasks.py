"""Tasks: named functions, and the App that knows them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from pgqueue.cron import check_cron
from pgqueue.db import produce
from pgqueue.db.call import Call, T
from pgqueue.db.declare import check_schedule_options
from pgqueue.db.drivers import AsyncConnection, SyncConnection
from pgqueue.db.results import Enqueued
from pgqueue.enqueue import Target, one, one_outcome, send
from pgqueue.errors import ConfigError, DuplicateTask, InvalidArgument, InvalidPayload
from pgqueue.hooks import Hooks
from pgqueue.job import Job
from pgqueue.middleware import Codec, EnqueueMiddleware, definition
from pgqueue.options import JobOptions, ScheduleSettings, TaskOptions, TaskSettings
from pgqueue.typed import TypedArguments
from pgqueue.workflows import Group

P = ParamSpec("P")
R = TypeVar("R")
AnyTask = TypeVar("AnyTask", bound="Task[..., Any]")


class Task(Target, Generic[P, R]):
    """A named function. Call it to run it here and now; `enqueue` it to have a worker run it.

    `P` are the parameters that a producer gives, `R` is what the function returns.

    `name` is what the database knows; renaming or moving the function changes nothing as long as the name stays. The
    function may be a method of an object that carries what it needs (a database, an API client), or such an object
    with a `__call__`.
    """

    def __init__(self, name: str, function: Callable[P, R], options: TaskOptions, hooks: Hooks | None = None) -> None:
        self.name = name
        self.hooks = hooks or Hooks()
        self.function = function
        self.options = options
        declared = options.at_enqueue()
        self._declared: Mapping[str, object] = {"declared": declared} if declared else {}
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
    def enqueue(self, connection: SyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> int: ...
    @overload
    def enqueue(self, connection: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[int]: ...
    def enqueue(
        self, connection: SyncConnection | AsyncConnection, /, *args: P.args, **kwargs: P.kwargs
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

    def job(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return a call with these arguments as a job for `pgqueue.enqueue_batch` and `pgqueue.chain`."""
        return self.using().job(*args, **kwargs)

    def using(self, **options: Unpack[JobOptions]) -> TaskCall[P]:
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

    def deliver(self, connection: Any, call: Call[T]) -> T | Awaitable[T]:
        """Run a statement that enqueues jobs of this task; in a test that says so, the jobs themselves."""
        if self.hooks.deliver is None:
            return super().deliver(connection, call)
        delivered: T | Awaitable[T] = self.hooks.deliver(connection, call)
        return delivered

    def dump(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Check arguments by the annotations and write them as JSON has them, if the task asks for it."""
        return dict(args) if self.typed is None else self.typed.dump(args)

    def declared(self) -> Mapping[str, object]:
        """Return what its code declares and enqueue needs, as the option `declared`.

        Before the first worker has written that to the database, nothing else could say into which queue its jobs go.
        """
        return self._declared

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


class JobTask(Task[P, R]):
    """A task whose function takes its Job first. A direct call gives the Job; `enqueue` does not."""

    function: Callable[Concatenate[Job, P], R]  # type: ignore[assignment]

    def __call__(self, job: Job, /, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        return self.function(job, *args, **kwargs)


class Declare(Protocol):
    """What `@app.task(...)` with options returns: a decorator."""

    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R], /) -> JobTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


@dataclass(frozen=True, slots=True)
class TaskCall(Generic[P]):
    """A task with options for the jobs to come. Made by `Task.using`."""

    task: Task[P, Any]
    options: JobOptions

    @overload
    def enqueue(self, connection: SyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> int: ...
    @overload
    def enqueue(self, connection: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[int]: ...
    def enqueue(
        self, connection: SyncConnection | AsyncConnection, /, *args: P.args, **kwargs: P.kwargs
    ) -> int | Awaitable[int]:
        """Enqueue a call with these arguments; see `Task.enqueue`."""
        return send(connection, self.task, [self.task.bind(*args, **kwargs)], self.options, one)

    @overload
    def enqueue_outcome(self, connection: SyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued: ...
    @overload
    def enqueue_outcome(
        self, connection: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[Enqueued]: ...
    def enqueue_outcome(
        self, connection: SyncConnection | AsyncConnection, /, *args: P.args, **kwargs: P.kwargs
    ) -> Enqueued | Awaitable[Enqueued]:
        """Enqueue a call with these arguments and say what became of it; see `pgqueue.enqueue_outcome`."""
        return send(connection, self.task, [self.task.bind(*args, **kwargs)], self.options, one_outcome)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return a call with these arguments as a job for `pgqueue.enqueue_batch`.

        enqueue_batch(connection, [send_email.using(dedupe=to).job(to) for to in people])
        """
        codec = self.task.codec()
        bound = self.task.bind(*args, **kwargs)
        encoded = bound if codec is None else codec.encode(bound)
        return {"task": self.task.name, "args": encoded, **self.options, **self.task.declared()}

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
        return send(connection, self.task, bound, self.options, produce.enqueue_many)


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
    def task(self, function: Callable[Concatenate[Job, P], R], /) -> JobTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        accumulate: Literal[True],
        **options: Unpack[TaskSettings],
    ) -> Callable[[Callable[..., R]], Task[..., R]]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        accumulate: Literal[False] | None = None,
        **options: Unpack[TaskSettings],
    ) -> Declare: ...
    def task(self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Declare a function as a task, under `name` or the function's own.

        As a decorator, or called with a method or an object that carries its services:

            app.task(Mailer(smtp).send)
            app.task(name="charge")(Charge(api))      # an object with __call__ needs a name

        The options are those of `TaskOptions`. Raises DuplicateTask when the name is taken, ConfigError when it is
        empty or longer than 128 bytes or an option is unusable, TypeError for an unknown option.

        A function that needs its Job takes it as a parameter annotated `Job`. Make it the first one: then type
        checkers know that producers do not give it.
        """

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            chosen = name if name is not None else getattr(function, "__name__", "")
            if not 1 <= len(chosen.encode()) <= 128:
                raise ConfigError(f"a task's name must have 1 to 128 bytes: {chosen!r}")
            task = _made(chosen, function, options, self)
            if chosen in self.tasks:
                raise _duplicate(chosen, self.tasks[chosen].function, function)
            self.tasks[chosen] = task
            return task

        if function is None:
            TaskOptions.check_names(options)
            return declare
        return declare(function)

    def schedule(
        self,
        expression: str | None = None,
        /,
        *,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleSettings],
    ) -> Callable[[AnyTask], AnyTask]:
        """Have a task enqueued by the clock, under `name` or the task's own: by a cron expression, or `every=`.

        The options are those of the SQL function `schedule`: every, timezone, catch_up, overlap, jitter, queue,
        priority, ... `args` are the task's keyword arguments. Several may stand on one task, under different names.
        Raises DuplicateTask when the name is taken, ConfigError for neither or both of expression and every,
        InvalidArgument when the arguments do not fit, TypeError for an unknown option, ConfigError for a wrong
        expression.
        """
        check_schedule_options(options)
        if (expression is None) == (options.get("every") is None):
            raise ConfigError("a schedule takes either a cron expression or every=")

        def declare(task: AnyTask) -> AnyTask:
            if not isinstance(task, Task):
                raise ConfigError("only a task has a schedule", hint="put @app.schedule(...) above @app.task")
            chosen = name if name is not None else task.name
            if chosen in self.schedules:
                raise DuplicateTask(
                    f"two schedules are declared as {chosen!r}", hint="give one of them another: name=..."
                )
            if expression is not None:
                _check_expression(chosen, expression)
            self.schedules[chosen] = Schedule(chosen, task.name, expression, task.bind(**(args or {})), options)
            return task

        return declare

    def group(self, connection: Any, name: str | None = None, **options: Any) -> Group:
        """Open a group of jobs that are awaited together; it is closed at the end of the `with` block.

        Options: group_id (the group that it joins), depends_on, run_if, retention, headers, tags.

            with app.group(connection, "import") as group:
                for number in range(10):
                    group.enqueue(load, number)
            group.then(report)
        """
        return Group(connection, name, options)

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


def _made(name: str, function: Callable[..., Any], options: Mapping[str, Any], hooks: Hooks) -> Task[..., Any]:
    try:
        declared = TaskOptions(**options)
    except ConfigError as error:
        raise ConfigError(f"task {name}: {error.message}", hint=error.hint) from None
    return Task(name, function, declared, hooks)


def _check_expression(schedule: str, expression: str) -> None:
    try:
        check_cron(expression)
    except ConfigError as error:
        raise ConfigError(f"schedule {schedule}: {error.message}", hint=error.hint) from None


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
