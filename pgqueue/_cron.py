"""Cron expressions, checked where they are written. The database computes the times; it accepts the same ones."""

from __future__ import annotations

import re

from pgqueue.errors import ConfigError

_SHORTHANDS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

# The fields: for each its name, its smallest and largest value, how many values it has, and their names.
_FIELDS: tuple[tuple[str, int, int, int, dict[str, int]], ...] = (
    ("second", 0, 59, 60, {}),
    ("minute", 0, 59, 60, {}),
    ("hour", 0, 23, 24, {}),
    ("day of month", 1, 31, 31, {}),
    ("month", 1, 12, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    ("day of week", 0, 7, 7, {name: number for number, name in enumerate(_DAYS)}),
)

_ITEM = re.compile(r"(?:(\*)|([0-9]{1,4}|[a-z]{3})(?:-([0-9]{1,4}|[a-z]{3}))?)(?:/([0-9]{1,4}))?")


def check_cron(expression: str) -> None:
    """Raise ConfigError if this is no cron expression: five fields, or six with seconds first, or @daily and so on."""
    text = re.sub(r"\s+", " ", expression.strip(" \t\r\n")).lower()
    if text in _SHORTHANDS:
        return
    fields = text.split(" ")
    if len(fields) == 5:
        fields.insert(0, "0")
    if len(fields) != 6 or len(expression.encode("utf-8", "replace")) > 1000:
        raise ConfigError(
            f"a cron expression has five fields, or six with seconds first: {expression[:100]!r} has {len(fields)}",
            hint="give minute, hour, day of month, month and day of week, such as '30 2 * * mon-fri', or one of "
            + ", ".join(_SHORTHANDS),
        )
    for field, (name, low, high, count, names) in zip(fields, _FIELDS, strict=True):
        for item in field.split(","):
            if not _is_item(item, low, high, count, names):
                raise ConfigError(
                    f"the {name} of a cron expression must be {low} to {high}{_or_names(name)}: {item[:100]!r} is not",
                    hint="give *, a value, a range a-b (a not above b), each with a step /n of at most the number of"
                    " the field's values, or a list of these",
                )


def _is_item(item: str, low: int, high: int, count: int, names: dict[str, int]) -> bool:
    found = _ITEM.fullmatch(item)
    if found is None:
        return False
    star, first, last, step = found.groups()
    begin = low if star else _value(first, names)
    end = high if star or (last is None and step) else begin
    if last is not None:
        end = 7 if last == "sun" and "sun" in names else _value(last, names)
    return begin is not None and end is not None and low <= begin <= end <= high and 1 <= int(step or 1) <= count


def _value(text: str, names: dict[str, int]) -> int | None:
    return int(text) if text.isdigit() else names.get(text)


def _or_names(field: str) -> str:
    return {"month": " or jan to dec", "day of week": " or sun to sat (0 and 7 are Sunday)"}.get(field, "")
