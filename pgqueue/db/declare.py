"""Statements that write what the code declares: tasks and schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import orjson

from pgqueue._options import no_option
from pgqueue.db.arrays import elements
from pgqueue.db.call import Call, read_first
from pgqueue.db.json import as_interval, check_value, interval_text, micros, read_instant, to_json


def declare_task(name: str, options: Mapping[str, object]) -> Call[bool]:
    """Write the options that the code declares for a task; reads whether anything changed."""
    delays = options.get("retry_delays")
    if isinstance(delays, Iterable) and not isinstance(delays, str):
        # An array has elements of one type: texts, if one of them is a text.
        options = {**options, "retry_delays": [interval_text(delay) for delay in delays]}
    return Call(
        b"select pgqueue.declare_task(%s::text, %s::text, %s::integer, %s::integer, %s::text, %s::interval,"
        b" %s::float8, %s::interval, %s::interval, %s::interval, %s::interval, %s::interval, %s::interval[], %s::text,"
        b" %s::boolean, %s::integer, %s::interval, %s::integer, %s::boolean, %s::text, %s::text)",
        (
            name,
            *(
                options.get(option)
                for option in (
                    "queue",
                    "priority",
                    "max_attempts",
                    "retry_policy",
                    "retry_delay",
                    "retry_jitter",
                    "expires_in",
                    "retention_succeeded",
                    "retention_cancelled",
                    "retention_dead",
                    "retry_cap",
                    "retry_delays",
                    "retry_queue",
                    "accumulate",
                    "batch_size",
                    "timeout",
                    "max_crashes",
                    "store_result",
                    "docs",
                    "owner",
                )
            ),
        ),
        read_first,
    )


# The options of schedule and the types they are cast to; an unknown one is the caller's TypeError.
SCHEDULE_TYPES = {
    "every": "interval",
    "timezone": "text",
    "catch_up": "text",
    "catch_up_cap": "integer",
    "overlap": "text",
    "jitter": "interval",
    "queue": "text",
    "priority": "integer",
    "max_attempts": "integer",
    "expires_in": "interval",
    "headers": "jsonb",
    "tags": "text[]",
    "retention": "interval",
}


def check_schedule_options(options: Mapping[str, object]) -> None:
    """Raise TypeError for an option that schedule does not have, and InvalidArgument for a value read as another."""
    for name, value in options.items():
        if name not in SCHEDULE_TYPES:
            raise no_option("a schedule", name, SCHEDULE_TYPES)
        check_value(name, value, SCHEDULE_TYPES[name])


def schedule(
    name: str,
    expression: str | None,
    task: str,
    args: Mapping[str, Any] | orjson.Fragment,
    options: Mapping[str, object],
) -> Call[datetime | None]:
    """Declare a schedule; reads when it is due next. Only a change is written."""
    check_schedule_options(options)
    given = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        if SCHEDULE_TYPES[option] == "interval":
            given[option] = as_interval(option, value)
    if "headers" in given:
        given["headers"] = to_json(given["headers"], "headers")
    if "tags" in given and isinstance(given["tags"], Iterable):
        given["tags"] = elements("tags", given["tags"])
    named = "".join(f", {option} => %s::{SCHEDULE_TYPES[option]}" for option in given)
    return Call(
        f"select {micros(f'pgqueue.schedule(%s::text, %s::text, %s::text, %s::jsonb{named})')}".encode(),
        (name, expression, task, to_json(args, "args"), *given.values()),
        lambda rows: read_instant(rows[0][0]),
    )
