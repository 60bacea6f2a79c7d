"""What an operator does: open the pages until one names the cause, and run the commands that are printed there."""

from __future__ import annotations

import html
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass

from examples.incidents.scenes import Incident
from examples.incidents.stage import MODULE, Stage
from pgqueue._remedies import steps


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds from opening the first page until it is there, and until the incident is over."""

    cause: float
    cure: float
    pages: int
    commands: tuple[str, ...]


def commands_of(remedy: str) -> tuple[str, ...]:
    """Return the commands that a remedy prints: of two ways, the first."""
    return tuple(text.rstrip(";") for text, is_command in steps(remedy.partition("; or ")[0]) if is_command)


def words_of(page: str) -> str:
    """Return the text of a page."""
    return " ".join(html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)).split())


def see(incident: Incident, get: Callable[[str], str]) -> int:
    """Open its pages until one shows it; returns how many were opened. Raises LookupError."""
    for number, path in enumerate(incident.pages, 1):
        text = words_of(get(path))
        if all(word in text for word in incident.shown):
            return number
    raise LookupError(f"{incident.name}: {incident.shown} is not on {incident.pages}: {text}")


def carry_out(stage: Stage, command: str) -> None:
    """Run a command as printed, with the name of the module that only an operator knows."""
    if command.startswith("select "):
        stage.conn.execute(command.encode())
        return
    words = ["" if word == "pgqueue" else MODULE if word == "MODULE" else word for word in shlex.split(command)][1:]
    if words[0] == "worker":
        stage.run_worker(words[1:])
    else:
        stage.command(*words)


def end(incident: Incident, stage: Stage, get: Callable[[str], str], within: float = 120.0) -> Measured:
    """See an incident that stands, and end it by what is printed."""
    began = time.monotonic()
    pages = see(incident, get)
    cause = time.monotonic() - began
    found = incident.found(stage)
    if found is None:
        raise LookupError(f"{incident.name} does not stand")
    commands = commands_of(found["remedy"])
    if incident.before is not None:
        incident.before(stage)
    for command in commands:
        carry_out(stage, command)
    stage.until(lambda: incident.cured(stage), within)
    return Measured(round(cause, 2), round(time.monotonic() - began, 1), pages, commands)
