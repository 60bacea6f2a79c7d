"""The App: the tasks and schedules of an application."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Literal, Protocol, TypeVar, Unpack, overload

from pgqueue._cron import check_cron
from pgqueue._options import ScheduleSettings, TaskOptions, TaskSettings, is_name
from pgqueue.db.declare import check_schedule_options
from pgqueue.errors import ConfigError, DuplicateTask
from pgqueue.hooks import Hooks
from pgqueue.job import Job
from pgqueue.tasks import JobTask, P, R, Task
from pgqueue.workflows import Group

AnyTask = TypeVar("AnyTask", bound="Task[..., Any]")


class Declare(Protocol):
    """The decorator that `@app.task(...)` with options returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R], /) -> JobTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


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
    """The tasks of an application, their schedules, middleware and hooks. A worker is started with one.

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
        aliases: Collection[str] = (),
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
        aliases: Collection[str] = (),
        accumulate: Literal[False] | None = None,
        **options: Unpack[TaskSettings],
    ) -> Declare: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        aliases: Collection[str] = (),
        **options: Any,
    ) -> Any:
        """Declare a function as a task, under `name` or the function's own.

        `aliases` are former names: jobs that were enqueued under them run this function too, with these options.

        As a decorator, or called with a method or an object that carries its services:

            app.task(Mailer(smtp).send)
            app.task(name="charge")(Charge(api))      # an object with __call__ needs a name

        The options are those of `TaskOptions`. Raises DuplicateTask when the name is taken, ConfigError when it is
        empty or longer than 128 bytes or an option is unusable, TypeError for an unknown option.

        A function that needs its Job takes it as a parameter annotated `Job`. Make it the first one: then type
        checkers know that producers do not give it.
        """

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            if isinstance(aliases, str):
                raise ConfigError(f"aliases is {aliases!r}", hint="give a list of names")
            chosen = name if name is not None else getattr(function, "__name__", "")
            every = []
            for each in (chosen, *aliases):
                if not isinstance(each, str) or not is_name(each):
                    raise ConfigError(f"a task's name must have 1 to 128 bytes, and no NUL or lone surrogate: {each!r}")
                if each in self.tasks:
                    raise _duplicate(each, self.tasks[each].function, function)
                every.append(made_task(Task, each, function, options, self))
            self.tasks.update({task.name: task for task in every})
            return every[0]

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
        priority, ... `args` are the task's keyword arguments. One task may have several, under different names.
        Raises DuplicateTask when the name is taken, ConfigError for neither or both of expression and every,
        InvalidArgument when the arguments or the value of an option do not fit, TypeError for an unknown option,
        ConfigError for a wrong expression.
        """
        check_schedule_options(options)
        if (expression is None) == (options.get("every") is None):
            raise ConfigError("a schedule takes either a cron expression or every=")

        def declare(task: AnyTask) -> AnyTask:
            if not isinstance(task, Task):
                raise ConfigError("only a task has a schedule", hint="put @app.schedule(...) above @app.task")
            chosen = name if name is not None else task.name
            if not is_name(chosen):
                raise ConfigError(
                    f"a schedule's name must have 1 to 128 bytes, and no NUL or lone surrogate: {chosen!r}"
                )
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
        """Include the tasks and schedules of another App. Raises DuplicateTask when both have one of the same name.

        Its execution middleware and hooks are included, inside our own. Its codec and enqueue middleware apply to its
        own tasks only.
        """
        self.include_hooks(other)
        for schedule in other.schedules.values():
            if self.schedules.setdefault(schedule.name, schedule) is not schedule:
                raise DuplicateTask(f"two schedules are declared as {schedule.name!r}", hint="rename one of them")
        for name, task in other.tasks.items():
            mine = self.tasks.setdefault(name, task)
            if mine is not task:
                raise _duplicate(name, mine.function, task.function)


def made_task(
    kind: type[AnyTask], name: str, function: Callable[..., Any], options: Mapping[str, Any], hooks: Hooks
) -> AnyTask:
    """Make a task of this class. Raises ConfigError, with the task's name, for an unusable option."""
    try:
        declared = TaskOptions(**options)
    except ConfigError as error:
        raise ConfigError(f"task {name}: {error.message}", hint=error.hint) from None
    return kind(name, function, declared, hooks)


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
