"""Tasks: named functions."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from pgqueue._options import CELERY, Interval, JobOptions, TaskOptions, check_job_options
from pgqueue._typed import (
    TypedArguments,
    TypedResult,
    check_kept,
    result_schema_of,
    schema_of,
    typed_arguments,
    typed_result,
)
from pgqueue.db import produce
from pgqueue.db.call import Call, T
from pgqueue.db.drivers import AsyncConnection, SyncConnection
from pgqueue.db.results import Enqueued
from pgqueue.enqueue import Target, awaited, one, one_outcome, send
from pgqueue.errors import ConfigError, InvalidArgument, InvalidPayload
from pgqueue.hooks import Hooks
from pgqueue.job import Job
from pgqueue.middleware import Codec, EnqueueMiddleware, definition

P = ParamSpec("P")
R = TypeVar("R")

# What other queues call enqueue, and what Celery calls a job that is not enqueued yet.
_ENQUEUES = (
    "delay",
    "apply_async",
    "delay_on_commit",
    "apply_async_on_commit",
    "send",
    "send_with_options",
    "defer",
    "defer_async",
    "perform_async",
)
_JOBS = ("s", "si", "signature", "subtask")


class Task(Target, Generic[P, R]):
    """A named function. Call it to run it here and now; `enqueue` it to have a worker run it.

    `P` are the parameters that a producer gives, `R` is the type of the result.

    The database knows the task by `name`; renaming or moving the function changes nothing as long as the name stays.
    The function may be a method of an object with its services (a database, an API client), or such an object with a
    `__call__`.
    """

    # For messages: the options of a job by the names that `using` takes, those among them with another name than in
    # JobOptions, and what comes first in enqueue.
    options_of_jobs: Collection[str] = JobOptions.__annotations__.keys()
    called: Mapping[str, str] = MappingProxyType({})
    first_in_enqueue = "connection, "

    def __init__(self, name: str, function: Callable[P, R], options: TaskOptions, hooks: Hooks | None = None) -> None:
        self.name = name
        self.hooks = hooks or Hooks()
        self.function = function
        self.options = options
        declared = options.at_enqueue()
        self._declared: Mapping[str, object] = {"declared": declared} if declared else {}
        written = definition(function)
        _check_runs(name, written)
        self.is_async = inspect.iscoroutinefunction(written)
        self.job_parameter = _job_parameter(function)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        parameters = inspect.signature(function).parameters.values()
        _check_named(name, parameters)
        self._signature = inspect.Signature([each for each in parameters if each.name != self.job_parameter])
        self.payloads_parameter = _payloads_parameter(name, self._signature) if options.accumulate else None
        if options.validate:
            # Annotations that cannot be checked are refused here.
            _ = self.typed

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @cached_property
    def typed(self) -> TypedArguments | None:
        """What converts the arguments; None for a task whose arguments JSON keeps as they are."""
        return typed_arguments(
            self.name, self.function, self._signature, self.payloads_parameter, self.options.validate
        )

    @cached_property
    def typed_result(self) -> TypedResult | None:
        """What converts the results; None for a task whose results JSON keeps as they are."""
        return typed_result(self.name, self.function)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    if not TYPE_CHECKING:  # To a type checker, a name that is not there is an error.

        def __getattr__(self, name: str) -> Any:
            # Only what other queues call it, and what is not there, comes here.
            raise no_attribute(
                self,
                name,
                "enqueue it on a connection, in its transaction, with which the job is committed:"
                " {task}.enqueue(connection, ...)",
                "{task}.job(...) is a job for pgqueue.chain(connection, ...) and enqueue_batch(connection, ...)",
            )

    @overload
    def enqueue(self, connection: SyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> int: ...
    @overload
    def enqueue(self, connection: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[int]: ...
    def enqueue(self, connection: Any = None, /, *args: P.args, **kwargs: P.kwargs) -> int | Awaitable[int]:
        """Enqueue a call of this task with these arguments and return the job's id, as `pgqueue.enqueue` does.

        Raises InvalidArgument when the arguments do not fit the function; then nothing was enqueued.

            send_email.enqueue(connection, "a@b.c", subject="Hello")
        """
        result: int | Awaitable[int] = self.using().enqueue(connection, *args, **kwargs)
        return result

    @overload
    def enqueue_many(
        self, connection: SyncConnection, /, args: Iterable[Mapping[str, Any]], *, spread: Interval | None = None
    ) -> list[int]: ...
    @overload
    def enqueue_many(
        self, connection: AsyncConnection, /, args: Iterable[Mapping[str, Any]], *, spread: Interval | None = None
    ) -> Awaitable[list[int]]: ...
    def enqueue_many(
        self,
        connection: SyncConnection | AsyncConnection,
        /,
        args: Iterable[Mapping[str, Any]],
        *,
        spread: Interval | None = None,
    ) -> list[int] | Awaitable[list[int]]:
        """Enqueue one call for each mapping of keyword arguments, in one statement; see `pgqueue.enqueue_many`."""
        return self.using().enqueue_many(connection, args, spread=spread)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return a call with these arguments as a job for `pgqueue.enqueue_batch` and `pgqueue.chain`."""
        return self.using().job(*args, **kwargs)

    def using(self, **options: Unpack[JobOptions]) -> TaskCall[P]:
        """Return this task with options for its next jobs: queue, delay, key, dedupe, ... as `pgqueue.enqueue`.

        Raises TypeError for an option that jobs do not have, and InvalidArgument for a value that none can have.

        send_email.using(queue="critical", delay=timedelta(minutes=5)).enqueue(connection, "a@b.c")
        """
        check_job_options(options)
        return TaskCall(self, options)

    def middleware(self) -> Sequence[EnqueueMiddleware]:
        """Return its App's middleware around enqueue."""
        return self.hooks.around_enqueue()

    def codec(self) -> Codec | None:
        """Return its App's codec."""
        return self.hooks.codec

    def check_connection(self, connection: Any) -> None:
        """Raise TypeError for what is no connection to enqueue on; under `pgqueue.testing.inline` there may be none."""
        if connection is not None or self.hooks.deliver is None:
            super().check_connection(connection)

    def deliver(self, connection: Any, call: Call[T]) -> T | Awaitable[T]:
        """Run a statement that enqueues jobs of this task; under `pgqueue.testing.inline`, the jobs themselves."""
        if self.hooks.deliver is None:
            return super().deliver(connection, call)
        delivered: T | Awaitable[T] = self.hooks.deliver(connection, call)
        return delivered

    def dump(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Convert arguments to JSON by the annotations. Raises InvalidArgument for what they cannot restore."""
        if self.typed is not None:
            return self.typed.dump(args)
        check_kept(self.name, args)
        return dict(args)

    def prepare(self) -> None:
        """Build what converts arguments and results, and not with the first job."""
        for each in (self.typed, self.typed_result):
            if each is not None:
                _ = each.adapter

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments of a job, or of one payload. Raises ConfigError."""
        return schema_of(self.name, self.function, self._signature, self.payloads_parameter)

    def result_schema(self) -> dict[str, Any]:
        """Return the JSON schema of what the function returns. Raises ConfigError."""
        return result_schema_of(self.name, self.function)

    def dump_result(self, result: Any) -> Any:
        """Convert what the handler returned to JSON, by its annotation. Raises InvalidArgument."""
        return result if self.typed_result is None or result is None else self.typed_result.dump(result)

    def load_result(self, stored: Any) -> Any:
        """Convert a stored result to the annotated type. Raises InvalidPayload."""
        return stored if self.typed_result is None or stored is None else self.typed_result.load(stored)

    def declared(self) -> Mapping[str, object]:
        """Return the declared options that an enqueue needs, as the option `declared`.

        Until the first worker has written them to the database, only they determine the queue of its jobs.
        """
        return self._declared

    def decode(self, args: dict[str, Any]) -> dict[str, Any]:
        """Decode the arguments of a job with the App's codec. Raises InvalidPayload."""
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

    def by_name(self, args: Any) -> Any:
        """Name arguments that are given as a list, in the order of the function; others are returned as they are.

        Some may be missing. Those of a parameter *args are a list under its name. Raises InvalidArgument for too many.
        """
        if not isinstance(args, list | tuple):
            return args
        try:
            bound = self._signature.bind_partial(*args).arguments
        except TypeError as error:
            raise self._misfit(error, {}) from error
        return {name: list(value) if self._is_rest(name) else value for name, value in bound.items()}

    def check_names(self, names: Iterable[str]) -> None:
        """Raise InvalidArgument for a name that is no argument of the function."""
        parameters = self._signature.parameters
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
        unknown = [name for name in names if name not in parameters]
        if unknown and not takes_any and self.payloads_parameter is None:
            raise InvalidArgument(
                f"task {self.name}{self._signature} has no argument {unknown[0]!r}",
                hint="give the arguments that the function takes",
            )

    def as_given(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a job as people give them, for a test to compare. Raises InvalidPayload."""
        return self.decode(stored)

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Name positional arguments as the function does, and check them. Raises InvalidArgument when they do not fit.

        They are returned in JSON form.
        """
        if self.payloads_parameter is not None and self.typed is not None and len(args) == 1 and not kwargs:
            return self.typed.dump(args[0])
        return self.dump(self._named(args, kwargs))

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if self.payloads_parameter is not None:
            return _payload(self.name, args, kwargs)
        bound = self._bound(args, kwargs)
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

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._misfit(error, kwargs) from error

    def _is_rest(self, name: str) -> bool:
        return self._signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL

    def _misfit(self, error: TypeError, kwargs: Mapping[str, Any]) -> InvalidArgument:
        return InvalidArgument(
            f"these arguments do not fit task {self.name}{self._signature}: {error}", hint=self._way_out(kwargs)
        )

    def _way_out(self, kwargs: Mapping[str, Any]) -> str:
        unknown = [CELERY.get(each, each) for each in kwargs if each not in self._signature.parameters]
        options = [name for each in unknown if (name := self.called.get(each, each)) in self.options_of_jobs]
        if not options:
            return "give the arguments that the function takes"
        given = ", ".join(f"{each}=..." for each in options)
        return f"give options of the job to using(): {self.name}.using({given}).enqueue({self.first_in_enqueue}...)"


class JobTask(Task[P, R]):
    """A task whose function takes its Job first. A direct call gives the Job; `enqueue` does not."""

    function: Callable[Concatenate[Job, P], R]  # type: ignore[assignment]

    def __call__(self, job: Job, /, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        return self.function(job, *args, **kwargs)


def no_attribute(task: Any, name: str, enqueues: str, jobs: str) -> AttributeError:
    """Return the error for a name that a task does not have: with the way out, where other queues have it.

    `enqueues` and `jobs` are the ways out, with {task} for its name, which an unfinished copy does not have.
    """
    way = enqueues if name in _ENQUEUES else jobs if name in _JOBS else None
    if way is None:
        return AttributeError(f"{type(task).__name__!r} object has no attribute {name!r}", name=name, obj=task)
    return AttributeError(f"a task has no {name}(): {way.replace('{task}', task.name)}")


@dataclass(frozen=True, slots=True)
class TaskCall(Generic[P]):
    """A task with options for the jobs to come. Made by `Task.using`."""

    task: Task[P, Any]
    options: JobOptions

    @overload
    def enqueue(self, connection: SyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> int: ...
    @overload
    def enqueue(self, connection: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[int]: ...
    def enqueue(self, connection: Any = None, /, *args: P.args, **kwargs: P.kwargs) -> int | Awaitable[int]:
        """Enqueue a call with these arguments; see `Task.enqueue`."""
        self.task.check_connection(connection)
        result = send(connection, self.task, [self.task.bind(*args, **kwargs)], self.options, one)
        return awaited(result, "enqueue", self.task)

    @overload
    def enqueue_outcome(self, connection: SyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued: ...
    @overload
    def enqueue_outcome(
        self, connection: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[Enqueued]: ...
    def enqueue_outcome(
        self, connection: Any = None, /, *args: P.args, **kwargs: P.kwargs
    ) -> Enqueued | Awaitable[Enqueued]:
        """Enqueue a call with these arguments and return the outcome; see `pgqueue.enqueue_outcome`."""
        self.task.check_connection(connection)
        result = send(connection, self.task, [self.task.bind(*args, **kwargs)], self.options, one_outcome)
        return awaited(result, "enqueue_outcome", self.task)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return a call with these arguments as a job for `pgqueue.enqueue_batch`.

        enqueue_batch(connection, [send_email.using(dedupe=to).job(to) for to in people])
        """
        codec = self.task.codec()
        bound = self.task.bind(*args, **kwargs)
        encoded = bound if codec is None else codec.encode(bound)
        return {"task": self.task.name, "args": encoded, **self.options, **self.task.declared()}

    @overload
    def enqueue_many(
        self, connection: SyncConnection, /, args: Iterable[Mapping[str, Any]], *, spread: Interval | None = None
    ) -> list[int]: ...
    @overload
    def enqueue_many(
        self, connection: AsyncConnection, /, args: Iterable[Mapping[str, Any]], *, spread: Interval | None = None
    ) -> Awaitable[list[int]]: ...
    def enqueue_many(
        self,
        connection: SyncConnection | AsyncConnection,
        /,
        args: Iterable[Mapping[str, Any]],
        *,
        spread: Interval | None = None,
    ) -> list[int] | Awaitable[list[int]]:
        """Enqueue one call for each mapping of keyword arguments; see `Task.enqueue_many`."""
        bound = [self.task.bind(**each) for each in args]
        many = partial(produce.enqueue_many, spread=spread)
        return awaited(send(connection, self.task, bound, self.options, many), "enqueue_many", self.task)


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


# What both make of a function has this code, whatever the function.
_CONTEXT_MANAGERS = {contextmanager(iter).__code__, asynccontextmanager(aiter).__code__}


def _check_runs(task: str, written: Callable[..., Any]) -> None:
    """Refuse a function whose call runs none of its code."""
    if inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written):
        raise ConfigError(
            f"task {task} is a generator: calling it runs none of its code", hint="let it return instead of yield"
        )
    if getattr(written, "__code__", None) in _CONTEXT_MANAGERS:
        raise ConfigError(
            f"task {task} is a context manager: calling it runs none of its code",
            hint="make the task a plain function that enters it",
        )


def _check_named(task: str, parameters: Iterable[inspect.Parameter]) -> None:
    for each in parameters:
        if each.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"task {task} takes {each.name} by position only, and arguments of a job have names",
                hint="take the / out of its parameters",
            )


def _job_parameter(function: Callable[..., Any]) -> str | None:
    written = definition(function)
    try:
        hints = typing.get_type_hints(written)
    except Exception:
        # Annotations with names that cannot be resolved here: compare their text.
        hints = getattr(written, "__annotations__", {})
    for name, hint in hints.items():
        if name != "return" and _is_job(hint):
            return name
    return None


# An annotation as text: Job, Job | None, Optional[Job], Annotated[Job, ...], with or without the module.
_JOB = re.compile(
    r"(?:None *\| *)?(?:(?:typing\.)?(?:Optional|Annotated)\[ *)?(?:pgqueue\.)?Job(?: *\| *None| *\]| *,.*\])?"
)


def _is_job(hint: Any) -> bool:
    if isinstance(hint, str):
        return _JOB.fullmatch(hint.strip(" '\"")) is not None
    if hint is Job:
        return True
    if typing.get_origin(hint) in (typing.Union, types.UnionType, typing.Annotated):
        return any(_is_job(each) for each in typing.get_args(hint))
    return False
