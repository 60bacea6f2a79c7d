"""Tasks and the App that knows them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from datetime import date, timedelta
from typing import Annotated, Any

import pytest

import pgqueue
from pgqueue import App, Job
from pgqueue._options import JobOptions, ScheduleSettings, TaskOptions, TaskSettings
from pgqueue.db import declare, produce
from pgqueue.errors import ConfigError, DuplicateTask, InvalidArgument


def test_a_task_is_still_the_function_that_it_was_made_of() -> None:
    app = App()

    @app.task
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    @app.task(name="other")
    async def later() -> str:
        return "done"

    assert add(1, b=2) == 3
    assert (add.name, add.__doc__, repr(add)) == ("add", "Add two numbers.", "<Task add>")
    assert (add.is_async, later.is_async) == (False, True)
    assert app.tasks == {"add": add, "other": later}


async def test_an_async_task_is_awaited_when_called() -> None:
    app = App()

    @app.task
    async def greet(name: str) -> str:
        return f"Hello {name}"

    assert await greet("Ada") == "Hello Ada"


def test_two_tasks_of_one_name_are_refused_by_their_places() -> None:
    app = App()

    @app.task(name="mail")
    def one() -> None: ...

    with pytest.raises(DuplicateTask, match=r"task 'mail': .*one and .*two; give one of them another name"):

        @app.task(name="mail")
        def two() -> None: ...

    assert app.tasks["mail"] is one


def test_an_app_includes_another_once_and_refuses_its_own_names() -> None:
    one, other, third = App(), App(), App()

    @other.task
    def shared() -> None: ...

    third.task(name="shared")(lambda: None)
    one.include(other)
    one.include(other)
    assert one.tasks == {"shared": shared}
    with pytest.raises(DuplicateTask):
        one.include(third)


@pytest.mark.parametrize("name", ["", "x" * 129, "é" * 65, "a\0b", "\ud800"])
def test_a_name_that_the_queue_would_refuse_is_refused_where_it_is_written(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 128 bytes"):
        App().task(name=name)(lambda: None)
    with pytest.raises(ConfigError, match="1 to 128 bytes"):
        App().task(name="t", queue=name)(lambda: None)
    with pytest.raises(ConfigError, match="1 to 128 bytes"):
        App().schedule("@daily", name=name)(App().task(name="t")(lambda: None))


def test_a_handler_without_a_name_of_its_own_needs_one() -> None:
    with pytest.raises(ConfigError, match="1 to 128 bytes"):
        App().task(functools.partial(print, "x"))


def test_an_unknown_option_of_a_task_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="max_tries"):
        App().task(max_tries=3)


def test_only_the_options_that_were_given_are_declared() -> None:
    assert TaskOptions(queue="mail", retry_jitter=0.0).as_mapping() == {"queue": "mail", "retry_jitter": 0.0}


class Handler:
    async def __call__(self, to: str, run: Job) -> None: ...

    def method(self, run: pgqueue.Job) -> None: ...


def with_text(run: "Job") -> None: ...  # noqa: UP037


def without() -> None: ...


async def partial(prefix: str, to: str, run: Job) -> None: ...


def optional(run: Job | None = None) -> None: ...


def annotated(to: str, run: Annotated[Job, "ours"]) -> None: ...


def optional_text(other: "Nowhere", run: "pgqueue.Job | None" = None) -> None: ...  # noqa: F821, UP037


def of_another_kind(other: "Nowhere", run: "Jobs | None" = None) -> None: ...  # noqa: F821, UP037


@pytest.mark.parametrize(
    ("function", "parameter", "is_async"),
    [
        (optional, "run", False),
        (annotated, "run", False),
        (optional_text, "run", False),
        (of_another_kind, None, False),
        (with_text, "run", False),
        (without, None, False),
        (Handler(), "run", True),
        (Handler().method, "run", False),
        (functools.partial(partial, "x"), "run", True),
        (functools.partial(functools.partial(Handler()), to="x"), "run", True),
    ],
    ids=[
        "optional",
        "annotated",
        "optional as text",
        "another",
        "text",
        "none",
        "object",
        "method",
        "partial",
        "partial of an object",
    ],
)
def test_the_parameter_that_takes_the_job_is_found_by_its_annotation(
    function: Callable[..., Any], parameter: str | None, is_async: bool
) -> None:
    task = App().task(name="t")(function)
    assert (task.job_parameter, task.is_async) == (parameter, is_async)


def test_a_function_that_takes_an_argument_by_position_only_is_no_task() -> None:
    def greet(name: str, /) -> None: ...

    with pytest.raises(ConfigError, match=r"takes name by position only.* take the / out"):
        App().task(greet)


@pytest.mark.parametrize("make", [contextmanager, asynccontextmanager])
def test_a_context_manager_is_no_task(make: Callable[..., Any]) -> None:
    def greet() -> Any:
        yield

    with pytest.raises(ConfigError, match="context manager: calling it runs none of its code"):
        App().task(make(greet))


def test_what_other_queues_call_it_says_what_it_is_here() -> None:
    task = App().task(name="t")(lambda: None)
    for name in ("delay", "apply_async", "delay_on_commit"):
        with pytest.raises(AttributeError, match=r"enqueue it on a connection.* t\.enqueue\(connection"):
            getattr(task, name)
    for name in ("s", "si", "signature"):
        with pytest.raises(AttributeError, match=rf"no {name}\(\): t\.job\(\.\.\.\) is a job for pgqueue\.chain"):
            getattr(task, name)
    assert not hasattr(task, "delayed")
    # A copy is asked for names before it has its own.
    assert copy.copy(task).name == "t"


def test_an_option_of_the_job_among_the_arguments_is_told_where_it_belongs() -> None:
    task = App().task(name="t")(lambda name, key=None: None)
    with pytest.raises(InvalidArgument) as raised:
        task.bind("Ada", delay=60, key="k")
    assert "t.using(delay=...).enqueue(connection, ...)" in str(raised.value.hint)
    with pytest.raises(InvalidArgument) as raised:
        task.bind("Ada", nobody=1)
    assert raised.value.hint == "give the arguments that the function takes"


@pytest.mark.parametrize("value", ["Ada", {"name": "Ada"}, 17])
def test_a_value_in_the_place_of_the_connection_is_told_so(value: Any) -> None:
    task = App().task(name="t")(lambda name: None)
    for call in (task.enqueue, task.using(priority=1).enqueue_outcome, pgqueue.enqueue, pgqueue.enqueue_outcome):
        with pytest.raises(TypeError, match=r"the connection comes first.* outside of a transaction"):
            call(value, "Ada")  # type: ignore[operator]


def test_a_connection_that_is_left_out_is_told_so() -> None:
    task = App().task(name="t")(lambda name: None)
    for call in (task.enqueue, task.using(priority=1).enqueue, task.using(priority=1).enqueue_outcome):
        for given in ({}, {"name": "Ada"}):
            with pytest.raises(
                TypeError, match=r"the connection comes first, and it is missing.* outside of a transac"
            ):
                call(**given)  # type: ignore[operator]


def test_a_day_is_no_instant() -> None:
    with pytest.raises(InvalidArgument, match=r"run_at is the day 2026-12-24; give an instant"):
        App().task(name="t")(lambda: None).using(run_at=date(2026, 12, 24))  # type: ignore[typeddict-item]


def test_the_job_parameter_is_not_for_the_producer() -> None:
    app = App()

    @app.task
    def t(job: Job, to: str) -> None: ...

    assert t.bind("a@b.c") == {"to": "a@b.c"}
    with pytest.raises(InvalidArgument, match="job"):
        t.bind("a@b.c", job=1)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("retry_delay", "5 minuts", "5 min"),
        ("retry_delay", "soon", "5 min"),
        ("retry_delay", timedelta(days=-1), "from zero to 366 days"),
        ("timeout", True, "seconds, a timedelta, or a text"),
        ("timeout", timedelta(days=8), "from zero to 7 days"),
        ("retry_policy", "expo", "exponential"),
        ("retry_policy", "list", "retry_delays"),
        ("retry_policy", {"max_retries": 3}, 'the rest are options of their own: retry_policy="fixed"'),
        ("retry_delays", "5 min", "1 to 1000 intervals"),
        ("retry_delays", ["5 min", "7 minuts"], "5 min"),
        ("max_attempts", 0, "a whole number from 1 to 100000"),
        ("max_attempts", 2.5, "a whole number"),
        ("max_attempts", True, "a whole number"),
        ("priority", 101, "from -100 to 100"),
        ("retry_jitter", 1.5, "a number from 0 to 1"),
        ("queue", "", "1 to 128 bytes"),
        ("batch_size", 1001, "from 1 to 1000"),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_written_with_its_task(option: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        App().task(name="send_email", **{option: value})(lambda: None)  # type: ignore[call-overload]
    assert refused.value.message.startswith(f"task send_email: {option} is ")
    assert expected in (refused.value.hint or "")


@pytest.mark.parametrize("value", ["5 min", "1 day 02:03:04.5", "P1DT2H", "@ 1 hour", "1.5 h", "90", "2 weeks"])
def test_what_postgres_reads_as_an_interval_is_accepted(value: str) -> None:
    assert TaskOptions(retry_delay=value).retry_delay == value


def test_the_types_of_options_name_every_option() -> None:
    assert set(TaskOptions.__slots__) - {"accumulate"} == set(TaskSettings.__annotations__)
    # What the code declares is sent along, not given.
    assert set(JobOptions.__annotations__) == set(produce.OPTION_TYPES) - {"declared"}
    assert set(ScheduleSettings.__annotations__) == set(declare.SCHEDULE_TYPES)


def test_a_former_name_is_the_same_function_with_the_same_options() -> None:
    app = App()

    @app.task(name="send_email", aliases=["send_mail", "mail"], max_attempts=3)
    def send(to: str) -> None: ...

    assert send.name == "send_email"
    assert {name: each.name for name, each in app.tasks.items()} == {
        "send_email": "send_email",
        "send_mail": "send_mail",
        "mail": "mail",
    }
    assert {each.function for each in app.tasks.values()} == {send.function}
    assert {each.options.max_attempts for each in app.tasks.values()} == {3}


def test_a_former_name_that_is_taken_or_none_is_refused_and_declares_nothing() -> None:
    app = App()
    app.task(name="mail")(lambda: None)
    with pytest.raises(DuplicateTask, match="task 'mail'"):
        app.task(name="send_email", aliases=["mail"])(lambda: None)
    with pytest.raises(ConfigError, match="1 to 128 bytes"):
        app.task(name="send_email", aliases=[""])(lambda: None)
    with pytest.raises(ConfigError, match="aliases is 'mail'; give a list of names"):
        app.task(name="send_email", aliases="mail")(lambda: None)
    assert list(app.tasks) == ["mail"]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("max_retries", "here it is max_attempts, which counts the first attempt, too"),
        ("default_retry_delay", "here it is retry_delay"),
        ("rate_limit", r"a limit of the queue holds for all workers; set_limit\(\) sets it: pgqueue limits set"),
        ("max_attempt", r"did you mean max_attempts\?"),
        ("queue_name", "here it is queue"),
        ("bind", "annotate a parameter of the function as Job, and it receives the job"),
        ("ignore_result", "a result is kept only for a task with store_result=True"),
        ("autoretry_for", "every exception is retried, except those that discard_on names"),
        ("eta", r"it is an option of a job, as in task.using\(run_at=...\).enqueue\(...\)"),
        ("delay", r"it is an option of a job, as in task.using\(delay=...\).enqueue\(...\)"),
    ],
)
def test_an_option_that_tasks_do_not_have_is_refused_with_the_one_that_was_meant(option: str, said: str) -> None:
    with pytest.raises(TypeError, match=f"a task has no option '{option}': {said}$"):
        App().task(**{option: 3})(lambda: None)
