"""A cron expression in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SHORTHANDS = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("", "January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


def in_words(expression: str) -> str:
    """Say when an expression is due, such as "at 03:30, Monday to Friday"; "" for what is no expression."""
    text = " ".join(expression.lower().split())
    fields = _SHORTHANDS.get(text, text).split(" ")
    if len(fields) == 5:
        fields.insert(0, "0")
    if len(fields) != 6:
        return ""
    second, minute, hour, day, month, weekday = fields
    parts = [_time(second, minute, hour)]
    days = [
        _of(day, "on day {} of the month", "every {} days of the month"),
        _of(weekday, "{}", "every {} days of the week", _DAYS),
    ]
    # As cron has it: where both are given, either is enough.
    parts.append(" or ".join(filter(None, days)))
    parts.append(_of(month, "in {}", "every {} months", _MONTHS))
    return ", ".join(filter(None, parts))


def _time(second: str, minute: str, hour: str) -> str:
    if all(field.isdigit() for field in (second, minute, hour)):
        return f"at {int(hour):02}:{int(minute):02}" + (f":{int(second):02}" if int(second) else "")
    hours = "" if hour == "*" else _of(hour, "in hour {}", "every {} hours")
    if minute == "*" or minute.startswith("*/"):
        minutes = "every minute" if minute == "*" else f"every {minute[2:]} minutes"
    elif hour == "*":
        minutes = f"at minute {_list(minute)} of every hour"
    else:
        minutes = f"at minute {_list(minute)}"
    seconds = ""
    if second != "0":
        seconds = "every second" if second == "*" else _of(second, "at second {}", "every {} seconds")
        minutes = "" if minute == "*" else minutes
    return ", ".join(filter(None, (seconds, minutes, hours)))


def _of(field: str, some: str, every: str, names: Sequence[str] = ()) -> str:
    if field == "*":
        return ""
    if field.startswith("*/"):
        return every.format(field[2:])
    return some.format(_list(field, names))


def _list(field: str, names: Sequence[str] = ()) -> str:
    def one(value: str) -> str:
        if value.isdigit() and int(value) < len(names):
            return names[int(value)]
        known = [name for name in names if len(value) == 3 and name.lower().startswith(value)]
        return known[0] if known else value

    def item(text: str) -> str:
        span, _, step = text.partition("/")
        first, _, last = span.partition("-")
        words = "all" if first == "*" else f"{one(first)} to {one(last)}" if last else one(first)
        return f"{words} in steps of {step}" if step else words

    items = [item(each) for each in re.split(",", field)]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
