"""Statements that enqueue jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import orjson

from pgqueue._options import POLICY_IN_PARTS, Interval, no_option
from pgqueue.db.arrays import elements
from pgqueue.db.call import Call, as_text, read_first, read_id, read_ids
from pgqueue.db.json import args_to_json, as_interval, check_value, from_json, interval_text, to_json
from pgqueue.db.results import BatchResult, Enqueued
from pgqueue.errors import InvalidArgument

# The options of enqueue and the types they are cast to; an unknown one is the caller's TypeError.
OPTION_TYPES = {
    "queue": "text",
    "priority": "integer",
    "run_at": "timestamptz",
    "delay": "interval",
    "expires_in": "interval",
    "timeout": "interval",
    "max_attempts": "integer",
    "key": "text",
    "score": "numeric",
    "dedupe": "text",
    "dedupe_for": "interval",
    "on_conflict": "text",
    "depends_on": "bigint[]",
    "headers": "jsonb",
    "tags": "text[]",
    "retention": "interval",
    "retry_policy": "text",
    "retry_delay": "interval",
    "retry_queue": "text",
    "limit_key": "text",
    "debounce_max": "interval",
    "declared": "jsonb",
    "run_if": "text",
    "group_id": "bigint",
    "retry_cap": "interval",
    "cost": "integer",
}
_ARRAYS = ("tags", "depends_on")


def enqueue(task: str, args: Mapping[str, Any], options: Mapping[str, object]) -> Call[int]:
    """One job; reads its id."""
    names, values = _options(options)
    return Call(_enqueue_text("enqueue", "jsonb", names), (task, args_to_json(args, "args"), *values), read_id)


def enqueue_many(
    task: str,
    args: Iterable[Mapping[str, Any]],
    options: Mapping[str, object],
    *,
    spread: Interval | None = None,
) -> Call[list[int]]:
    """One job for each of `args`; reads their ids in order."""
    names, values = _options(options)
    texts = [args_to_json(each, "args") for each in args]
    text = _enqueue_text("enqueue_many", "jsonb[]", names)
    if spread is None:
        return Call(text, (task, texts, *values), read_ids)
    return Call(
        text[:-1] + b", spread => %s::interval)", (task, texts, *values, as_interval("spread", spread)), read_ids
    )


def enqueue_outcome(
    task: str, args: Mapping[str, Any] | orjson.Fragment, options: Mapping[str, object]
) -> Call[Enqueued]:
    """One job; reads its id and the outcome."""
    names, values = _options(options)
    return Call(
        _enqueue_text("enqueue_outcome", "jsonb", names, "job_id, outcome from "),
        (task, args_to_json(args, "args"), *values),
        lambda rows: Enqueued(int(rows[0][0]), as_text(rows[0][1])),
    )


def enqueue_batch(jobs: Iterable[Mapping[str, object]], *, all_or_none: bool = False) -> Call[list[BatchResult]]:
    """Jobs with their own options; reads the outcome of each."""
    function = b"enqueue_all" if all_or_none else b"enqueue_batch"
    return Call(
        b"select job_id, outcome, error::text from pgqueue." + function + b"(%s::jsonb[]) order by ord",
        ([_batch_job(number, job) for number, job in enumerate(jobs)],),
        lambda rows: [_batch_result(*row) for row in rows],
    )


def open_group(name: str | None, options: Mapping[str, object]) -> Call[int]:
    """Open a group; reads its id."""
    names, values = _options(options)
    text = "".join(f", {each} => %s::{OPTION_TYPES[each]}" for each in names)
    return Call(f"select pgqueue.open_group(%s::text{text})".encode(), (name, *values), read_id)


def close_group(group_id: int) -> Call[bool]:
    """Close a group; reads False when it was closed."""
    return Call(b"select pgqueue.close_group(%s::bigint)", (group_id,), read_first)


def _batch_result(job_id: Any, outcome: Any, error: Any) -> BatchResult:
    return BatchResult(
        None if job_id is None else int(job_id), as_text(outcome), None if error is None else from_json(as_text(error))
    )


def _batch_job(number: int, job: Mapping[str, object]) -> str:
    options: dict[str, object] = {}
    for name, value in job.items():
        check_value(f"{name} of job {number} of the batch", value)
        if name == "args" and value is not None:
            value = orjson.Fragment(args_to_json(value, f"args of job {number} of the batch"))
        if OPTION_TYPES.get(name) == "interval":
            value = as_interval(f"{name} of job {number} of the batch", value)
        elif name in _ARRAYS and not isinstance(value, str) and isinstance(value, Iterable):
            value = elements(f"{name} of job {number} of the batch", value)
        elif isinstance(value, Decimal) and value.is_finite():
            value = orjson.Fragment(str(value))
        options[name] = interval_text(value) if isinstance(value, timedelta) else value
    return to_json(options, f"job {number} of the batch")


@lru_cache(maxsize=256)
def _enqueue_text(function: str, args_type: str, names: tuple[str, ...], columns: str = "") -> bytes:
    options = "".join(f", {name} => %s::{OPTION_TYPES[name]}" for name in names)
    return f"select {columns}pgqueue.{function}(%s::text, %s::{args_type}{options})".encode()


def _options(options: Mapping[str, object]) -> tuple[tuple[str, ...], list[object]]:
    names: list[str] = []
    values: list[object] = []
    for name, value in options.items():
        if name not in OPTION_TYPES:
            raise no_option("a job", name, OPTION_TYPES)
        if value is None:
            continue
        check_value(name, value, OPTION_TYPES[name])
        if OPTION_TYPES[name] == "interval":
            value = as_interval(name, value)
        elif OPTION_TYPES[name] == "numeric" and isinstance(value, float):
            value = Decimal(repr(value))  # From a double precision PostgreSQL would make a numeric of 15 digits.
        elif name in ("headers", "declared"):
            value = to_json(value, name)
        elif name in _ARRAYS and not isinstance(value, str) and isinstance(value, Iterable):
            value = elements(name, value)
        elif isinstance(value, dict):
            # The error of a driver would not name the option.
            hint = f"give its name; {POLICY_IN_PARTS}" if name == "retry_policy" else "give a text or a number"
            raise InvalidArgument(f"{name} is {value!r}", hint=hint)
        names.append(name)
        values.append(value)
    return tuple(names), values
