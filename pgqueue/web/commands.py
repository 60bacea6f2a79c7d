"""A command that enqueues a job like another one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pgqueue._redaction import hides
from pgqueue.web.render import printable

# Characters of args that are shown in a command.
_MOST = 2000

# Options that the job itself may set, as the command line and SQL name them.
_OPTIONS = {"key": "--key", "limit_key": "--limit-key", "timeout": "--timeout", "max_attempts": "--max-attempts"}


def copy(job: Mapping[str, Any], args: str, redact: Sequence[str], shows_args: bool) -> tuple[str, str]:
    """Return a command that enqueues a job like this one, and why it does not show the args, "" where it does.

    The args stand in it where all of them may be shown, in a shell, unchanged. Otherwise it copies them within the
    database: nothing is shown that the page hides, and it needs the rights of an operator there.
    """
    why = _why_not(args, redact, shows_args)
    if not why:
        found = _in_shell(job, args)
        if printable(found) == found:
            return found, ""
        why = "they hold control characters"
    return _in_database(job), why


def _why_not(args: str, redact: Sequence[str], shows_args: bool) -> str:
    if not shows_args:
        return "this page hides them"
    if len(args) > _MOST:
        return "they are long"
    try:
        return "this page hides some of their values" if hides(json.loads(args), redact) else ""
    except (ValueError, RecursionError):
        return "they nest too deep to show"


def _in_shell(job: Mapping[str, Any], args: str) -> str:
    options = ["--queue", job["queue"]]
    if job["priority"]:
        options += ["--priority", str(job["priority"])]
    for name, option in _OPTIONS.items():
        if job[name] is not None:
            options += [option, str(job[name])]
    for tag in job["tags"] or []:
        options += ["--tag", tag]
    return shlex.join(["pgqueue", "enqueue", *options, "--", job["task"], args])


def _in_database(job: Mapping[str, Any]) -> str:
    options = [name for name in ("queue", "priority", *_OPTIONS, "tags") if job[name] is not None]
    given = ", ".join(f"{name} => j.{name}" for name in options)
    return f"select pgqueue.enqueue(j.task, j.args, {given}) from pgqueue.all_jobs j where j.id = {job['id']};"
