"""Actions on one thing of which a page asks first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from pgqueue.db.call import Call
from pgqueue.web.actions import Form, change, one
from pgqueue.web.context import Context


@dataclass(frozen=True, slots=True)
class Action:
    """An action on one thing: the right it needs, its label, what happens, and the statement."""

    right: str
    label: str
    effect: str
    call: Callable[[str], Call[Any]]
    said: str
    otherwise: str
    is_danger: bool = False


async def act(context: Context, of: str, actions: dict[str, Action], form: Form) -> Response:
    """Ask, or do what was answered: one of `actions` on a worker or a schedule."""
    name, what = one(form, "name"), one(form, "do")
    action = actions.get(what)
    if action is None:
        raise HTTPException(400, "there is no such action")
    context.require(action.right)
    if one(form, "confirm") != "yes":
        return context.page("sure.html", asked_of=of, name=name, what=what, action=action, job=one(form, "job"))
    found = await change(context, action.call(name))
    if found and what == "run":
        return context.go(f"{of}s", said=f"job {found} was enqueued")
    return context.go(f"{of}s", said=f"{name}: {action.said if found else action.otherwise}")
