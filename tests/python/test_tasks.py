"""Tasks and the App that knows them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import pgqueue
from pgqueue import App, ConfigError, DuplicateTask, Job, TaskOptions


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


@pytest.mark.parametrize("name", ["", "x" * 129, "é" * 65])
def test_a_name_that_the_queue_would_refuse_is_refused_where_it_is_written(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 128 bytes"):
        App().task(name=name)(lambda: None)


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


@pytest.mark.parametrize(
    ("function", "parameter", "is_async"),
    [
        (with_text, "run", False),
        (without, None, False),
        (Handler(), "run", True),
        (Handler().method, "run", False),
        (functools.partial(partial, "x"), "run", True),
        (functools.partial(functools.partial(Handler()), to="x"), "run", True),
    ],
    ids=["text", "none", "object", "method", "partial", "partial of an object"],
)
def test_the_parameter_that_takes_the_job_is_found_by_its_annotation(
    function: Callable[..., Any], parameter: str | None, is_async: bool
) -> None:
    task = App().task(name="t")(function)
    assert (task.job_parameter, task.is_async) == (parameter, is_async)


def test_the_job_parameter_is_not_for_the_producer() -> None:
    app = App()

    @app.task
    def t(job: Job, to: str) -> None: ...

    assert t.bind("a@b.c") == {"to": "a@b.c"}
    with pytest.raises(pgqueue.InvalidArgument, match="job"):
        t.bind("a@b.c", job=1)
