"""The format of values on a page: times, numbers, JSON with hidden fields, buckets as percentiles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined, UndefinedError
from markupsafe import Markup

from pgqueue import __version__, verdict
from pgqueue._filters import quoted
from pgqueue._redaction import HIDDEN, is_hidden
from pgqueue._remedies import steps
from pgqueue.db import observe
from pgqueue.logs import how_many
from pgqueue.web.series import percentile
from pgqueue.worker.tell.counts import Entry

# An instant as PostgreSQL writes it, and its offset.
_INSTANT = re.compile(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?([+-]\d\d(?::\d\d)?)\b")
_NAME_FIRST = re.compile(r"\S+ (?:takes|=) ")
_UNIT = re.compile(r"(?<=\d) (?=(?:ms|s|min|h|d|MiB|%)(?!\w))")
_COUNT_FIRST = re.compile(r"^the (?:oldest of (?:[^;,]|,\d)* is|queue has (?:[^;,]|,\d)*) due since [^;,]*, and ")

# The size of a sparkline, and the seconds that it shows.
SPARK = (120, 30)
SPARK_SECONDS = 3600

# Seconds between the samples that it has, and some more.
_BETWEEN = 120

_DAY = 86_400

# A queue with fewer jobs than this does not fill its sparkline, so a calm queue looks calm.
_LEAST = 50

# Names longer than this are cut on lists; a name is at most 512 bytes, a message may be a megabyte.
_SHOWN = 120
_SHOWN_TEXT = 20_000

# Characters of the first line of an error that its fingerprint is made of.
_LINE = 200


def environment() -> Environment:
    """Return the environment of the templates."""
    found = Environment(
        loader=PackageLoader("pgqueue.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        ago=ago,
        age=verdict.age,
        blocked_parts=blocked_parts,
        counted=counted,
        how_many=many,
        fields=Fields,
        number=number,
        quantity=quantity,
        rate=rate,
        seconds=seconds,
        short=short,
        stamp=stamp,
        text=text,
        at=at,
        bytes=size,
        quoted=quoted,
        say=say,
        interval=interval,
        lasting=lasting,
        level=verdict.level,
        with_times=with_times,
        unbroken=unbroken,
        capital=capital,
        brief=brief,
        clock=clock,
        instant=instant,
        is_within=is_within,
        masked=masked,
        group_key=group_key,
        pace=pace,
        like=like,
        steps=lambda remedy: steps(text(remedy)),
    )
    found.globals.update(version=__version__, spark=SPARK, late_from=(verdict.LATE, verdict.VERY_LATE))
    return found


class Fields(dict[str, Any]):
    """An object that another program wrote, perhaps without some fields, or with something else in its place."""

    def __init__(self, value: object) -> None:
        super().__init__(value if isinstance(value, dict) else {})

    def __missing__(self, name: str) -> None:
        return None


def link(prefix: str, page: str, **query: object) -> str:
    """Return the address of a page."""
    # An if without else is undefined, even to a strict environment.
    if wrong := [name for name, value in query.items() if isinstance(value, Undefined)]:
        raise UndefinedError(f"the link to {page} has an undefined {', '.join(wrong)}")
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{prefix}/{page}" + (f"?{urlencode(given)}" if given else "")


def short(value: object, most: int = _SHOWN) -> str:
    """Shorten a text for a list, on one line, with unprintable characters escaped."""
    found = printable(" ".join(str("" if value is None else value).split()))
    return found if len(found) <= most else found[: most - 1] + "…"


def text(value: object) -> str:
    """Return a text, cut only if it is very long."""
    found = printable(str("" if value is None else value), keep="\n\t")
    return (
        found if len(found) <= _SHOWN_TEXT else f"{found[:_SHOWN_TEXT]}\n… {len(found) - _SHOWN_TEXT} characters more"
    )


def printable(value: str, keep: str = "") -> str:
    """Escape characters that change how the rest is displayed: controls, and marks of direction."""
    return re.sub(
        r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]",
        lambda match: match[0] if match[0] in keep else f"\\u{ord(match[0]):04x}",
        value,
    )


def number(value: float | None, cut_at: int | None = None) -> str:
    """Write a number with thousands apart; with + where counting stopped."""
    if value is None:
        return "–"
    found = f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
    return f"{found}+" if cut_at is not None and value >= cut_at else found


def quantity(value: object) -> str:
    """Write what a client reported, a number or anything else."""
    return number(value) if isinstance(value, int | float) else short(value, 40)


def many(value: float, noun: str) -> str:
    """Write a number with its noun: 1 job, 2,000 jobs."""
    return how_many(value, noun, number)


def counted(numbers: Mapping[str, Any], name: str, is_brief: bool = False) -> str:
    """Write a number of a queue: with + where counting stopped, with ~ where it was not counted in the last sample."""
    return observe.counted(numbers, name, brief_number if is_brief else number)


def blocked_parts(numbers: Mapping[str, Any]) -> Fields:
    """Return the blocked jobs of a queue by what they wait for, for `counted`: at least as many where it stopped."""
    stop = numbers["counted_to"]
    is_cut = stop is not None and numbers["blocked"] >= stop
    known = {"counted_at": numbers["counted_at"], "counted_to": 0 if is_cut else None}
    return Fields({**(numbers["blocked_by"] or {}), **known})


def brief_number(value: float) -> str:
    """Write a number in few characters: 999, 1.7k, 17k, 1.2M."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            found = value / limit
            # Down: what is just below a million is not one.
            return f"{int(found * 10) / 10:g}{unit}" if found < 10 else f"{int(found)}{unit}"
    return f"{value:.0f}"


def rate(value: float) -> str:
    """Write a number per second with about two significant digits: tasks may be rare."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def seconds(value: float | None) -> str:
    """Write a time in the unit that suits it."""
    if value is None:
        return "–"
    for limit, unit, divisor in ((0.9995, "ms", 0.001), (120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if value < limit:
            found = value / divisor
            return f"{found:.0f} {unit}" if found >= 10 or found == 0 else f"{found:.1f} {unit}"
    return f"{value / 86_400:.0f} d"


def size(value: float | None) -> str:
    """Write a number of bytes."""
    return "–" if not value else f"{value / 2**20:,.0f} MiB"


def at(value: str | None) -> Markup:
    """Write an instant; the browser shows it in the reader's zone."""
    if not value:
        return Markup("–")
    found = datetime.fromisoformat(value) if value not in ("infinity", "-infinity") else None
    if found is None:
        return Markup("{}").format(value)
    return Markup('<time datetime="{}">{}</time>').format(found.isoformat(), _in_utc(found))


def _in_utc(found: datetime) -> str:
    return found.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def group_key(group: Mapping[str, Any]) -> str:
    """Return a short name of a group of the dead, for addresses."""
    text = "\x1f".join(str(group[name] or "") for name in ("task", "class", "fingerprint"))
    return blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()


def like(group: Mapping[str, Any]) -> str:
    """Return the filter of the dead jobs of a group."""
    words = [("task", group["task"]), ("class", group["class"]), ("fingerprint", group["fingerprint"])]
    return " ".join(["state:dead", *(f"{name}:{quoted(value)}" for name, value in words if value)])


def masks_of(fingerprint: str) -> list[str]:
    """Split the line of a group of the dead into texts and, between them, the names of what is masked."""
    return re.split(r"<(n|id|host|url|text)>", fingerprint)


def masked(fingerprint: str) -> Markup:
    """Write the line of a group of the dead with a mark in the place of what is masked."""
    parts = masks_of(short(fingerprint, 200))
    found = Markup()
    for number, part in enumerate(parts):
        found += Markup('<span class="mask">‹{}›</span>').format(part) if number % 2 else part
    return found


def fits(fingerprint: str, line: str) -> bool:
    """Tell whether a line of an error is one of those that a group of the dead masks so."""
    # Not a pattern: one of many masks takes for ever to find that a line does not fit.
    first, *between = masks_of(fingerprint)[::2]
    line = line.partition("\n")[0][:_LINE]
    if not between:
        return line == first
    last, at = between.pop(), len(first)
    for part in between:
        # A mask stands for one character at least.
        at = line.find(part, at + 1) + len(part)
        if at < len(part):
            return False
    return line.startswith(first) and line.endswith(last) and len(line) - len(last) > at


def usually(count: float) -> str:
    """Write what is usual in whole numbers."""
    return "usually none" if not count else "usually less than 1" if count < 1 else f"usually {number(round(count))}"


def pace(group: Mapping[str, Any], now: float, is_cut: bool = False) -> list[tuple[str, str]]:
    """Return how a group of the dead grows, as words with warn or "": that it is new, or its last day beside the usual.

    What is usual in a day is the mean of the days before, of the jobs that are kept. `is_cut`: there are more jobs than
    were read, and the group may be older than it looks.
    """
    age, trend = max(now - stamp(group["first_at"]), 0.0), group["trend"] or [0]
    if age <= _DAY:
        found = [(f"{counted(group, 'jobs')} within {seconds(age)}" if is_cut else f"new, {seconds(age)} old", "warn")]
    else:
        today = sum(trend)
        usual = (group["jobs"] - today) * _DAY / max(age - _DAY, _DAY)
        found = [
            (
                f"{number(today, group.get('counted_to'))} within a day, {usually(usual)}",
                "warn" if today > 3 * max(usual, 1) else "",
            )
        ]
    if group["jobs"] > 1 and is_within(group["last_at"], 600, now):
        found.append((f"growing, {rate(trend[-1] * 60 / min(max(age, 60.0), 3600.0))} / min", "warn"))
    return found


def is_within(value: str | None, seconds: float, now: float) -> bool:
    """Tell whether an instant is not longer ago than that."""
    return value is not None and now - stamp(value) <= seconds


def instant(epoch: float) -> str:
    """Return an instant as the database writes it."""
    return datetime.fromtimestamp(epoch, UTC).isoformat()


def clock(epoch: float) -> str:
    """Write the time of day of an instant, in UTC."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%H:%M:%S")


def ago(value: str | None, now: float) -> Markup:
    """Write how long ago an instant was, or how long until it comes."""
    if not value or value in ("infinity", "-infinity"):
        return Markup("–")
    found = datetime.fromisoformat(value)
    past = now - found.timestamp()
    words = f"{_to_the_second(past)} ago" if past >= 0 else f"in {_to_the_second(-past)}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(found.isoformat(), _in_utc(found), words)


def _to_the_second(value: float) -> str:
    """Write how far away an instant is. Less than a second says nothing, and looks different at each refresh."""
    return f"{max(value, 1.0):.0f} s" if value < 9.5 else seconds(value)


def lasting(value: str | None, now: float) -> Markup:
    """Write how long something lasts that began at an instant."""
    if not value or value in ("infinity", "-infinity"):
        return Markup("–")
    began = datetime.fromisoformat(value)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        began.isoformat(), _in_utc(began), seconds(max(now - began.timestamp(), 0.0))
    )


def with_times(value: object) -> Markup:
    """Write a text of the database with instants to the second; the browser shows them in the zone of the reader."""
    found = Markup()
    rest = unbroken(text(value))
    while match := _INSTANT.search(rest):
        zone = match[2] if ":" in match[2] else f"{match[2]}:00"
        try:
            shown = at(f"{match[1]}{zone}")
        except ValueError:
            shown = Markup("{}").format(match[0])
        found += Markup("{}{}").format(rest[: match.start()], shown)
        rest = rest[match.end() :]
    return found + rest


def unbroken(value: str) -> str:
    """Keep numbers and their units on one line: a unit alone on the next one is no word."""
    joined = _UNIT.sub("\N{NO-BREAK SPACE}", value)
    return Markup(joined) if isinstance(value, Markup) else joined


def capital(value: str) -> str:
    """Write a sentence of the database's with a capital letter, unless it begins with the name of a task or setting."""
    return value if _NAME_FIRST.match(value) else value[:1].upper() + value[1:]


def brief(value: str) -> str:
    """Return the evidence of a queue without its count and age, which stand in the same row."""
    return _COUNT_FIRST.sub("", value)


def interval(value: object) -> str:
    """Write an interval of the database's, such as 00:05:00, in words."""
    match = re.fullmatch(r"(?:(\d+) days? ?)?(?:(\d+):(\d\d):(\d\d(?:\.\d+)?))?", str(value or ""))
    if not value or match is None:
        return short(value)
    days, hours, minutes, rest = (float(part or 0) for part in match.groups())
    left = days * 86_400 + hours * 3600 + minutes * 60 + rest
    words = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count = left / length if unit == "s" else left // length
        if count:
            words.append(f"{count:g} {unit}")
        left -= count * length
    return " ".join(words) or "0 s"


def stamp(value: str) -> float:
    """Return the seconds of an instant of the database's."""
    return datetime.fromisoformat(value).timestamp() if "infinity" not in value else float("inf")


def say(value: object) -> str:
    """Write an option of a task or queue."""
    if value is None:
        return "–"
    if isinstance(value, list | dict | bool):
        return short(json.dumps(value, ensure_ascii=False), 200)
    if isinstance(value, timedelta):
        return str(value)
    return number(value) if isinstance(value, int) else short(value)


class _Number(str):
    """A number as PostgreSQL wrote it, so that none is rounded."""


def document(source: str, redact: Sequence[str]) -> str:
    """Indent a JSON document, with the values of fields hidden that the patterns name."""
    if len(source) > 200_000:
        return f"{len(source):,} characters of JSON: too long for a page"
    try:
        value = json.loads(source, parse_int=_Number, parse_float=_Number)
        return printable(_pretty(value, redact, ""), keep="\n")
    except RecursionError:
        return "nested too deep to show"


def _pretty(value: Any, redact: Sequence[str], indent: str) -> str:
    inner = indent + "  "
    match value:
        case dict() if value:
            lines = [
                f"{inner}{json.dumps(name, ensure_ascii=False)}: "
                + (json.dumps(HIDDEN, ensure_ascii=False) if is_hidden(name, redact) else _pretty(each, redact, inner))
                for name, each in value.items()
            ]
            return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
        case list() if value:
            return "[\n" + ",\n".join(inner + _pretty(each, redact, inner) for each in value) + f"\n{indent}]"
        case _Number():
            return str(value)
    return json.dumps(value, ensure_ascii=False)


def sparklines(rows: Iterable[Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """Return the lines of queues from their samples: points of SVG, the highest number and the last one.

    A queue without a sample at a time had nothing in it. `begins`: where the recorded history does, within this hour.
    `late`: of a queue that is on time again, when it was late last, and how much at most.
    """
    samples = {queue: dict(zip(times, zip(due, lags, strict=True), strict=True)) for queue, times, due, lags in rows}
    times = sorted(samples.pop("", {}))
    return {
        queue: {**_sparkline([(at, found.get(at, (0, 0.0))[0]) for at in times]), "late": _was_late(found, times[-1])}
        for queue, found in samples.items()
        if times
    }


def _was_late(found: Mapping[float, tuple[int, float]], last: float) -> tuple[str, float] | None:
    late = {at: lag for at, (_, lag) in found.items() if lag >= verdict.LATE}
    return (instant(max(late)), max(late.values())) if late and max(late) < last else None


def line(at: Sequence[float], values: Sequence[float], limit: float | None = None) -> dict[str, Any]:
    """Return the points of a plot of 120 by 62: of what was measured within an hour, from zero on, and of its limit."""
    until, highest = at[-1], max(values)
    top = max(highest, limit or 0) or 1
    points = [
        (round(120 * (1 - min(until - each, SPARK_SECONDS) / SPARK_SECONDS), 1), round(62 - 55 * value / top, 1))
        for each, value in zip(at, values, strict=True)
    ]
    found = " ".join(f"{x:g},{y:g}" for x, y in points)
    return {
        "line": found,
        "area": f"{points[0][0]:g},62 {found} {points[-1][0]:g},62",
        "highest": highest,
        "last": values[-1],
        "limit": limit,
        "limit_at": None if not limit else round(14 + 62 - 55 * limit / top, 1),
        "from": at[-1] - SPARK_SECONDS,
        "until": until,
    }


def _sparkline(values: Sequence[tuple[float, int]]) -> dict[str, Any]:
    width, height = SPARK
    highest, until = max(value for _, value in values), values[-1][0]
    # One unit of margin, so that no line is cut at the edges.
    points = [
        (
            round(1 + (width - 2) * (1 - min(until - at, SPARK_SECONDS) / SPARK_SECONDS), 1),
            round(height - 1 - (height - 2) * value / max(highest, _LEAST), 1),
        )
        for at, value in values
    ]
    line = " ".join(f"{x:g},{y:g}" for x, y in points)
    area = f"{points[0][0]:g},{height - 1} {line} {points[-1][0]:g},{height - 1}"
    begins = points[0][0] if until - values[0][0] < SPARK_SECONDS - _BETWEEN else None
    return {"line": line, "area": area, "highest": highest, "last": values[-1][1], "begins": begins}


def by_task(rows: Iterable[tuple[str, Entry]]) -> dict[str, dict[str, Any]]:
    """Sum ended jobs by task: outcomes, and times with their percentiles."""
    found: dict[str, dict[str, Any]] = {}
    for task, ended in rows:
        entry = found.setdefault(task, {})
        for name, value in ended.items():
            if name not in ("run", "wait"):
                entry[name] = entry.get(name, 0) + value
                continue
            times = entry.setdefault(name, {"sum": 0.0, "max": 0.0, "buckets": [0] * 12})
            times["sum"] += value["sum"]
            times["max"] = max(times["max"], value["max"])
            times["buckets"] = [one + more for one, more in zip(times["buckets"], value["buckets"], strict=True)]
    for entry in found.values():
        for name in ("run", "wait"):
            if name in entry:
                for label, part in (("p50", 0.5), ("p95", 0.95)):
                    entry[name][label] = min(percentile(entry[name]["buckets"], part) or 0.0, entry[name]["max"])
    return found
