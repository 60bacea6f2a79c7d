"""What an operator does: open the pages, read who is late and why, and run the commands that are printed."""

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
    """Seconds from opening the page until the cause is there, and until the incident is over."""

    cause: float
    cure: float
    commands: tuple[str, ...]


def ways_of(remedy: str) -> list[tuple[str, ...]]:
    """Return the commands that a remedy prints, as printed; those behind "or" are another way."""
    found = [[text for text, is_command in steps(way) if is_command] for way in remedy.split("; or ")]
    return [tuple(way) for way in found if way]


def words_of(page: str) -> str:
    """Return the text of a page."""
    return " ".join(html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)).split())


def told_of(incident: Incident, page: str) -> list[str]:
    """Return the sentence on top of the overview, if it is about this incident, and the row of its queue.

    Nothing else of the page counts, such as a list of tasks or the commands: a name is no cause.
    """
    top = page.partition('<section class="verdict')[2].partition("</section>")[0]
    said = [
        (name, words_of(text)) for name, text in re.findall(r'<p class="(said|because[^"]*)">(.*?)</p>', top, re.DOTALL)
    ]
    topic = incident.topic.replace("_", " ")
    # The sentence with its evidence, and a line for each of other findings.
    lines = [
        " ".join(text for name, text in said if "small" not in name),
        *(text for name, text in said if "small" in name),
    ]
    about = f"{incident.queue} is " if incident.queue else topic
    rows = re.findall(r'<div class="row" id="queue-\d+">(.*?)(?=<div class="row"|<details|</section>)', page, re.DOTALL)
    return [
        *(line for line in lines if line.startswith(about)),
        *(words_of(row) for row in rows if f">{incident.queue}</a>" in row),
    ]


def see(incident: Incident, get: Callable[[str], str]) -> None:
    """Open the first page and read the cause there. Raises LookupError."""
    told = told_of(incident, get("/"))
    if not any(all(word in text for word in incident.shown) for text in told):
        raise LookupError(f"{incident.name}: {incident.shown} is not in {told}")


def carry_out(stage: Stage, command: str) -> None:
    """Run a command as printed, with the name of the module that only an operator knows."""
    if command.startswith("select "):
        stage.conn.execute(command.encode())
    elif command.startswith("pgqueue worker "):
        stage.run_worker([MODULE if word == "MODULE" else word for word in shlex.split(command)[2:]])
    else:
        stage.command(command)


def end(incident: Incident, stage: Stage, get: Callable[[str], str], within: float = 120.0, way: int = 0) -> Measured:
    """See an incident that stands, and end it by what is printed; `way`: of several ways, which."""
    began = time.monotonic()
    # A page that could not read the cause in time is read again, as the page does by itself.
    while True:
        try:
            see(incident, get)
            break
        except LookupError:
            if time.monotonic() > began + within / 4:
                raise
            time.sleep(5)
    cause = time.monotonic() - began
    found = incident.found(stage)
    if found is None:
        raise LookupError(f"{incident.name} does not stand")
    commands = ways_of(found["remedy"])[way]
    if incident.before is not None:
        incident.before(stage)
    for command in commands:
        carry_out(stage, command)
    stage.until(lambda: incident.cured(stage), within)
    return Measured(round(cause, 2), round(time.monotonic() - began, 1), commands)
