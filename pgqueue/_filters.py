"""The language of filters, the same on the page, on the command line and in `pgqueue top`.

    queue:mail,sms task:send_* state:failed,dead key:order:17 tenant:acme by:"web, checkout" tag:vip worker:w1 group:9
    id:1..500 age:>1h error:Timeout args.user.id:17 priority:>5 run:<tomorrow

A word is a name, a colon and a value, and all words must match. A value matches exactly, or, with * at its end, any
value that begins so; a comma separates alternatives; quotes protect spaces, commas and stars. A tenant is a limit_key;
`by` is who enqueued; `retried` is a bulk retry, by its number in `retry_fates()`. A number by itself is an id. `parse`
returns the filter that `pgqueue.search()` takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from pgqueue.errors import InvalidArgument

STATES = ("waiting", "executing", "failed", "blocked", "succeeded", "dead", "cancelled")

# Orders of jobs. "due" has only jobs in the states that have a time to run.
ORDERS = ("newest", "due", "oldest")
DUE_STATES = ("waiting", "failed")


def order_for(action: str) -> str:
    """Return the order in which to act on all jobs that match.

    Parents are older than their children, and a job that is retried before its parents would not wait for them.
    """
    return "oldest" if action == "retry" else "newest"


# Words whose values are names, by the field of the filter.
_NAMES = {
    "queue": "queues",
    "task": "tasks",
    "key": "keys",
    "tenant": "tenants",
    "by": "enqueued_by",
    "tag": "tags",
    "worker": "workers",
    "class": "classes",
    "line": "lines",
    "fingerprint": "fingerprints",
    "error": "errors",
}

# A job always has these texts, so the pattern * alone would match every job.
_FIT_ALWAYS = ("queue", "task", "line", "error", "fingerprint")

# Words that compare: the beginning of the names of their two fields.
_NUMBERS = {"priority": "priority", "attempts": "attempts"}
_TIMES = {"created": "created", "run": "run", "finished": "finished"}

WORDS = (
    *("queue", "task", "state", "key", "tenant", "by", "tag", "worker", "group", "id", "age", "created", "run"),
    *("finished", "retried", "priority", "attempts", "error", "class", "line", "fingerprint", "args.NAME"),
)

# How deeply names of a field in args may be nested.
_DEEPEST = 100

_HINT = f"words: {', '.join(f'{word}:' for word in WORDS)}; such as queue:mail state:failed,dead age:>1h"

_WORD = re.compile(r'\s*((?:[^\s"]|"(?:[^"\\]|\\.)*")+)')
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|sec|m|min|h|d|w)?")
_UNITS = {"m": "min", "d": "days", "w": "weeks", "h": "hours", None: "s"}

Filter = dict[str, Any]


def parse(text: str) -> Filter:
    """Parse a line of text as a filter. Raises InvalidArgument, with the list of words."""
    found: Filter = {}
    for word in _words(text):
        name, colon, value = word.partition(":")
        if not colon and name.isdigit():
            name, value = "id", name
        elif not colon or not value:
            raise InvalidArgument(f"{_short(word)} is not a word of a filter", hint=_HINT)
        _reader_of(name, word)(found, name, value)
    return found


def exactly(name: str) -> str:
    """Return a name as a filter that matches only this name: a * at its end would match any end."""
    return f"{name[:-1]}\\*" if name.endswith("*") else name


def quoted(value: str) -> str:
    """Return a value quoted so that the filter matches it exactly."""
    # A star is none of these characters, and is protected by quotes.
    return value if re.fullmatch(r"[\w.:/@-]+", value) else json.dumps(value, ensure_ascii=False)


def narrowed(line: str, name: str, value: str) -> str | None:
    """Return a filter with one value of a word, in place of those that it has: several are alternatives.

    None where that is not narrower: the filter has just this value, or another tag, beside which a job may have this.
    """
    has = [word for word in _words(line) if word.partition(":")[0] == name]
    if has and (name == "tag" or parse(" ".join(has)) == {_NAMES[name]: [exactly(value)]}):
        return None
    return replaced(line, name, quoted(value))


def replaced(line: str, name: str, text: str) -> str:
    """Return a filter in which a word has this text, and no other."""
    kept = [word for word in _words(line) if word.partition(":")[0] != name]
    return " ".join([*kept, f"{name}:{text}"])


def _words(text: str) -> Iterator[str]:
    position = 0
    while text[position:].strip():
        match = _WORD.match(text, position)
        if match is None:
            raise InvalidArgument("a quote is not closed", hint='write line:"no answer", and \\" for a quote within')
        yield match[1]
        position = match.end()


def _reader_of(name: str, word: str) -> Callable[[Filter, str, str], None]:
    if name in _NAMES:
        return _names
    if name in _NUMBERS:
        return _numbers
    if name in _TIMES:
        return _times
    if name.startswith("args.") and len(name) > len("args."):
        return _args
    try:
        return {"state": _states, "group": _groups, "retried": _retries, "id": _ids, "age": _age}[name]
    except KeyError:
        raise InvalidArgument(f"{_short(word)}: there is no word {_short(name)}", hint=_HINT) from None


def _names(found: Filter, name: str, value: str) -> None:
    for each in _parts(value):
        text = _unquoted(each)
        if not text or (text == each == "*" and name in _FIT_ALWAYS):
            raise InvalidArgument(
                f"{_short(f'{name}:{each}')} would match every job", hint=f"write {name}:VALUE, or leave {name}: out"
            )
        found.setdefault(_NAMES[name], []).append(exactly(text) if each.endswith('"') else text)


def _states(found: Filter, name: str, value: str) -> None:
    states = [_unquoted(each) for each in _parts(value)]
    for each in states:
        if each not in STATES:
            raise InvalidArgument(f"there is no state {_short(each)}", hint=f"states: {', '.join(STATES)}")
    found.setdefault("states", []).extend(states)


def _ids(found: Filter, name: str, value: str) -> None:
    low, dots, high = value.partition("..")
    if dots:
        if low:
            found["id_from"] = _id(low)
        if high:
            found["id_to"] = _id(high)
        return
    found.setdefault("ids", []).extend(_id(each) for each in value.split(","))


def _groups(found: Filter, name: str, value: str) -> None:
    found.setdefault("groups", []).extend(_id(each) for each in value.split(","))


def _retries(found: Filter, name: str, value: str) -> None:
    found.setdefault("retries", []).extend(_id(each) for each in value.split(","))


def _numbers(found: Filter, name: str, value: str) -> None:
    low, high = _range(value, lambda text: _integer(text, name))
    field = _NUMBERS[name]
    if low is not None:
        found[f"{field}_from"] = low
    if high is not None:
        found[f"{field}_to"] = high


def _times(found: Filter, name: str, value: str) -> None:
    field = _TIMES[name]
    if value[0] not in "<>":
        raise InvalidArgument(f"{name}: takes < or >", hint=f"write {name}:>2026-12-24 or {name}:<tomorrow")
    instant = _unquoted(value.lstrip("<>="))
    if not instant:
        raise InvalidArgument(f"{name}: has no time", hint=f"write {name}:>2026-12-24 or {name}:<tomorrow")
    found[f"{field}_{'to' if value[0] == '<' else 'from'}"] = instant


def _age(found: Filter, name: str, value: str) -> None:
    match = _INTERVAL.fullmatch(value.lstrip("<>=").strip())
    if value[0] not in "<>" or match is None:
        raise InvalidArgument("age: takes < or > and a time", hint="write age:>1h, age:<90s or age:>2d")
    unit = _UNITS.get(match[2], match[2])
    found["age_to" if value[0] == "<" else "age_from"] = f"{match[1]} {unit}"


def _args(found: Filter, name: str, value: str) -> None:
    try:
        leaf = json.loads(value)
    except ValueError:
        leaf = value
    except RecursionError:
        raise InvalidArgument(f"{_short(name)}: nests too deep") from None
    names = name.split(".")[1:]
    if len(names) + value.count("[") + value.count("{") > _DEEPEST:
        raise InvalidArgument(f"{_short(name)}: nests deeper than {_DEEPEST}", hint="ask for a field further up")
    for part in reversed(names):
        leaf = {part: leaf}
    found.setdefault("args", []).append(leaf)


def _range(value: str, read: Callable[[str], int]) -> tuple[int | None, int | None]:
    """Return the least number that fits, and the least above it that does not."""
    for sign, low, high in ((">=", 0, None), ("<=", None, 1), (">", 1, None), ("<", None, 0)):
        if value.startswith(sign):
            number = read(value[len(sign) :])
            return (None if low is None else number + low), (None if high is None else number + high)
    number = read(value)
    return number, number + 1


def _integer(text: str, name: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise InvalidArgument(f"{name}: takes a whole number, not {_short(text)}", hint=f"write {name}:5 or {name}:>5")
    return int(text)


def _id(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InvalidArgument(f"{_short(text)} is not an id", hint="write id:17, id:17,18, id:1..500 or group:9")
    return int(text)


def _parts(value: str) -> list[str]:
    parts = re.findall(r'((?:[^,"]|"(?:[^"\\]|\\.)*")+)', value)
    if not parts:
        raise InvalidArgument(f"{_short(value)} has no value", hint=_HINT)
    return parts


def _unquoted(value: str) -> str:
    def inner(match: re.Match[str]) -> str:
        try:
            return str(json.loads(match[0]))
        except ValueError:
            raise InvalidArgument(
                f"{_short(match[0])} cannot be read", hint='within quotes, write \\" and \\\\'
            ) from None

    return re.sub(r'"(?:[^"\\]|\\.)*"', inner, value)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
