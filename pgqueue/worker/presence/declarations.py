"""Writes the declared tasks and schedules at a worker's start. A refusal names the declaration."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import psycopg

from pgqueue.app import App
from pgqueue.db.call import Call
from pgqueue.db.declare import declare_task, schedule
from pgqueue.errors import InvalidArgument
from pgqueue.logs import one_line


async def declare(app: App, perform: Callable[[Call[Any]], Awaitable[Any]]) -> None:
    """Write the tasks and schedules of an App. Raises InvalidArgument for an option that the database refuses."""
    for task in app.tasks.values():
        options = task.options.as_mapping()
        await _perform(perform, declare_task(task.name, options), f"task {task.name}", options)
    for each in app.schedules.values():
        call = schedule(each.name, each.expression, each.task, each.args, each.options)
        await _perform(perform, call, f"schedule {each.name}", {"expression": each.expression, **each.options})


async def _perform(
    perform: Callable[[Call[Any]], Awaitable[Any]], call: Call[Any], what: str, options: Mapping[str, object]
) -> None:
    try:
        await perform(call)
    except (InvalidArgument, psycopg.IntegrityError, psycopg.DataError) as refusal:
        option = _option_of(refusal, options)
        where = what if option is None else f"{what}: {option} is {options[option]!r}"
        raise InvalidArgument(
            f"the database refuses {where}: {one_line(refusal)}", hint="correct it where the code declares it"
        ) from refusal


def _option_of(refusal: Exception, options: Mapping[str, object]) -> str | None:
    """Find the refused option: by the name of a constraint or of an argument, or by the value."""
    text = str(refusal)
    given = {name: value for name, value in options.items() if value is not None}
    for name in sorted(given, key=len, reverse=True):
        if re.search(rf"(?<![a-z]){name}(?:_check)?(?![a-z_])", text.replace("declared_", " ")):
            return name
    for name, value in given.items():
        if str(value) and f'"{value}"' in text:
            return name
    return None
