"""Find enqueued jobs, and fail a test with a list of the existing ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from pgqueue._options import no_field
from pgqueue.db import drivers
from pgqueue.db.call import Call, Row
from pgqueue.db.json import loaded, micros, read_instant, read_length, to_json
from pgqueue.enqueue import Named
from pgqueue.logs import how_many
from pgqueue.tasks import Task

T = TypeVar("T")

# Jobs that the message of a failure lists.
_SHOWN = 10

_JOBS = f"""
select
    j.id, j.task, j.args::text, j.queue, j.key, j.priority, j.state::text, j.attempts, j.max_attempts,
    {micros("j.run_at")}, {micros("j.created_at")}, {micros("j.run_at - j.created_at")}, j.headers::text, j.tags,
    j.dedupe, {micros("j.timeout")}
from pgqueue.jobs j
where j.state <> 'executing'
order by j.id
"""


@dataclass(frozen=True, slots=True)
class EnqueuedJob:
    """A job that waits: `state` is waiting, failed or blocked. `delay` is from its enqueue to its `run_at`.

    `args` are the arguments by their names; decoded if the task has a codec and was given as a task.
    """

    id: int
    task: str
    args: dict[str, Any]
    queue: str
    key: str | None
    priority: int | None
    state: str
    attempts: int
    max_attempts: int | None
    run_at: datetime
    created_at: datetime
    delay: timedelta
    headers: dict[str, Any] | None
    tags: list[str] | None
    dedupe: str | None
    timeout: timedelta | None


@dataclass(frozen=True, slots=True)
class approx:
    """An interval, more or less: `assert_enqueued(connection, task, delay=approx("1 h", "5 s"))`.

    Both are a timedelta, seconds, or a text of numbers and units, such as "1 h 30 min".
    """

    value: timedelta | float | str
    within: timedelta | float | str = timedelta(seconds=1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, timedelta) and abs(other - interval(self.value)) <= interval(self.within)

    def __hash__(self) -> int:
        return hash((self.value, self.within))

    def __repr__(self) -> str:
        return f"approx({str(self.value)!r}, {str(self.within)!r})"


def interval(value: timedelta | float | str) -> timedelta:
    """Return an interval as a timedelta. Raises ValueError for a text that is none."""
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        return timedelta(seconds=value)
    words = value.replace(",", " ").split()
    total = timedelta()
    if not words or len(words) % 2:
        raise ValueError(f"{value!r} is not an interval; give numbers with units, such as '1 h 30 min'")
    for number, unit in zip(words[::2], words[1::2], strict=True):
        name = next((name for name, spelled in _UNITS.items() if unit.lower() in spelled), None)
        if name is None:
            raise ValueError(f"{value!r} has the unit {unit!r}; give s, min, h, days or weeks")
        total += timedelta(**{name: float(number)})
    return total


_UNITS = {
    "milliseconds": {"ms", "millisecond", "milliseconds"},
    "seconds": {"s", "sec", "secs", "second", "seconds"},
    "minutes": {"m", "min", "mins", "minute", "minutes"},
    "hours": {"h", "hr", "hrs", "hour", "hours"},
    "days": {"d", "day", "days"},
    "weeks": {"w", "week", "weeks"},
}


def enqueued(connection: Any, task: str | Named | None = None, **wanted: Any) -> Any:
    """Return the jobs that wait and fit, oldest first, as a list of `EnqueuedJob`; async: an awaitable of it.

    `task` is a name or a task, also one of Django's. `args` and `headers` fit when they contain the given ones, `tags`
    when they are among the job's; every other field of `EnqueuedJob` when it is equal. `args` are a mapping of names,
    or, of a task, a list in the order of its function. `delay` and `timeout` take an interval, or `approx`. A function
    is asked: `args=lambda args: args["total"] > 100`.

        [job] = enqueued(connection, send_email, args={"to": "a@b.c"}, queue="mail")
    """
    return _ask(connection, _ours(task), wanted, lambda found, all_jobs: found)


def assert_enqueued(
    connection: Any, task: str | Named | None = None, *, count: int | None = None, **wanted: Any
) -> Any:
    """Return the oldest job that waits and fits, as `enqueued` has it; async: an awaitable. AssertionError for none.

    With `count`, exactly that many must fit. The error lists the existing jobs, and why the nearest does not fit.

        assert_enqueued(connection, send_email, args={"to": "a@b.c"}, delay=approx("1 h", "5 s"))
    """
    task = _ours(task)

    def check(found: list[EnqueuedJob], all_jobs: list[EnqueuedJob]) -> EnqueuedJob | None:
        if (found and count is None) or len(found) == count:
            return found[0] if found else None
        expected = "no job fits" if count is None else f"{_fit(found)}, not {count}"
        raise AssertionError(f"{expected}: {_described(task, wanted)}\n{_listing(task, wanted, all_jobs)}")

    return _ask(connection, task, wanted, check)


def _fit(found: list[EnqueuedJob]) -> str:
    return f"{how_many(len(found), 'job')} {'fits' if len(found) == 1 else 'fit'}"


def refute_enqueued(connection: Any, task: str | Named | None = None, **wanted: Any) -> Any:
    """Raise AssertionError when a job waits that fits, as `enqueued` has it; async: return an awaitable."""
    task = _ours(task)

    def check(found: list[EnqueuedJob], all_jobs: list[EnqueuedJob]) -> None:
        if found:
            lines = "\n".join(f"  {_line(job)}" for job in found[:_SHOWN])
            raise AssertionError(f"{_fit(found)}, and none should: {_described(task, wanted)}\n{lines}")

    return _ask(connection, task, wanted, check)


def _ours(task: str | Named | None) -> str | Named | None:
    # A task of Django's has one of ours.
    ours: str | Named | None = getattr(task, "native", task)
    return ours


def _ask(
    connection: Any,
    task: str | Named | None,
    wanted: Mapping[str, Any],
    answer: Callable[[list[EnqueuedJob], list[EnqueuedJob]], T],
) -> T | Awaitable[T]:
    for name in wanted:
        if name not in EnqueuedJob.__slots__:
            raise no_field("a job", name, EnqueuedJob.__slots__)
    if isinstance(task, Task) and "args" in wanted and not callable(wanted["args"]):
        # A misspelt name would fit no job, which is what a test that refutes one expects.
        _in_json(task, wanted["args"])

    def read(rows: list[Row]) -> T:
        jobs = [_job(row, task) for row in rows]
        return answer([job for job in jobs if not _misfits(job, task, wanted)], jobs)

    return cast("T | Awaitable[T]", drivers.run(connection, Call(_JOBS.encode(), (), read)))


def _job(row: Row, task: str | Named | None) -> EnqueuedJob:
    values = list(row)
    args = loaded(values[2])
    if isinstance(task, Task) and row[1] == task.name and isinstance(args, dict):
        args = task.as_given(args)
    values[2] = args
    values[9:11] = map(read_instant, values[9:11])
    values[11], values[12], values[15] = read_length(values[11]), loaded(values[12]), read_length(values[15])
    return EnqueuedJob(*values)


def _misfits(job: EnqueuedJob, task: str | Named | None, wanted: Mapping[str, Any]) -> list[str]:
    """Return the reasons why a job does not fit."""
    found = []
    name = _name(task)
    is_another = name is not None and job.task != name
    if is_another:
        found.append(f"task is {job.task!r}, not {name!r}")
    for field, expected in wanted.items():
        actual = getattr(job, field)
        if callable(expected):
            # It may expect the arguments of the task that was given.
            if not is_another and not expected(actual):
                found.append(f"{field} is {actual!r}, which the function refuses")
        elif field in ("args", "headers"):
            named = _in_json(task, expected) if field == "args" and isinstance(task, Task) else expected
            found += _differences(field, loaded(to_json(named, field)), actual)
        elif field == "tags":
            missing = [tag for tag in expected if tag not in (actual or ())]
            found += [f"tags are {actual}, without {tag!r}" for tag in missing]
        elif not _equal(field, expected, actual):
            found.append(
                f"{field} is {str(actual) if isinstance(actual, timedelta) else repr(actual)}, not {expected!r}"
            )
    return found


def _in_json(task: Task[..., Any], args: Any) -> Any:
    named = task.by_name(args)
    if not isinstance(named, Mapping):
        raise TypeError(
            f"args are a mapping of names, a list in the order of the function, or a function, not {args!r}"
        )
    task.check_names(named)
    return named if task.typed is None else task.typed.dump_some(named)


def _equal(field: str, expected: Any, actual: Any) -> bool:
    if field in ("delay", "timeout") and isinstance(expected, str | int | float) and actual is not None:
        expected = interval(expected)
    return bool(expected == actual)


def _differences(path: str, expected: Any, actual: Any) -> list[str]:
    """Compare JSON by containment: objects may have more keys, arrays more elements."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        found = []
        for name, value in expected.items():
            if name not in actual:
                found.append(f"{path} has no {name!r}")
            else:
                found += _differences(f"{path}[{name!r}]", value, actual[name])
        return found
    if isinstance(expected, list) and isinstance(actual, list):
        missing = [each for each in expected if not any(not _differences(path, each, other) for other in actual)]
        return [f"{path} is {actual!r}, without {each!r}" for each in missing]
    same = expected == actual and isinstance(expected, bool) == isinstance(actual, bool)
    return [] if same else [f"{path} is {actual!r}, not {expected!r}"]


def _listing(task: str | Named | None, wanted: Mapping[str, Any], jobs: Sequence[EnqueuedJob]) -> str:
    if not jobs:
        return "No job waits at all. Was it enqueued on this connection, or committed on another one?"
    misses = [(job, _misfits(job, task, wanted)) for job in jobs]
    candidates = [miss for miss in misses if miss[1]]
    lines = []
    if candidates:
        # Another task is further away than any option.
        name = _name(task)
        nearest, why = min(candidates, key=lambda miss: (name is not None and miss[0].task != name, len(miss[1])))
        lines += [f"The nearest is job {nearest.id}:", *(f"  {each}" for each in why)]
    lines += [f"Jobs that wait ({len(jobs)}):", *(f"  {_line(job)}" for job, _ in misses[:_SHOWN])]
    if len(jobs) > _SHOWN:
        lines.append(f"  and {len(jobs) - _SHOWN} more")
    return "\n".join(lines)


def _line(job: EnqueuedJob) -> str:
    options = [f"queue={job.queue!r}"]
    options += [f"key={job.key!r}"] if job.key is not None else []
    options += [f"delay={job.delay}"] if job.delay > timedelta(seconds=1) else []
    return f"job {job.id}: {job.task} {job.args} ({', '.join(options)}, {job.state})"


def _described(task: str | Named | None, wanted: Mapping[str, Any]) -> str:
    name = _name(task)
    parts: Iterable[str] = [
        *([name] if name else ["any task"]),
        *(f"{each}={value!r}" for each, value in wanted.items()),
    ]
    return ", ".join(parts)


def _name(task: str | Named | None) -> str | None:
    return task if task is None or isinstance(task, str) else task.name
