"""Actions on jobs, queues, groups and limits: each checks the user's right, asks first if it cannot be undone,
and is recorded in the audit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from pgqueue._filters import order_for
from pgqueue.db import groups, limits, observe, operate
from pgqueue.db.call import Call
from pgqueue.errors import InvalidArgument
from pgqueue.logs import how_many
from pgqueue.web.context import Context

# The right that each action needs.
RIGHTS = {
    "stack": "act", "run": "act", "retry": "act", "cancel": "act", "update": "act",
    "kill": "delete", "delete": "delete",
}  # fmt: skip
LABELS = {
    "run": "Run now", "retry": "Retry", "cancel": "Cancel", "update": "Change", "kill": "Send to the dead",
    "delete": "Delete",
}  # fmt: skip

# Jobs that one request changes, that a preview counts, and that may be changed without typing their number.
CHUNK = 500
COUNTED = 10_000
FREELY = 1000

Form = dict[str, list[str]]


async def act(context: Context) -> Response:
    """Act on the jobs that were selected, or on all that match: ask first, then act chunk by chunk."""
    form = await context.form()
    action = one(form, "action")
    if action not in RIGHTS:
        raise HTTPException(400, "there is no such action")
    context.require(RIGHTS[action])
    if action == "stack":
        return await _ask_for_stack(context, _number(form, "id"))
    changes = _changes(context, form) if action == "update" else {}
    if one(form, "scope") == "all":
        return await _act_on_all(context, form, action, changes)
    ids = [int(each) for each in form.get("id", []) if each.isascii() and each.isdigit() and len(each) <= 18]
    if not ids:
        raise InvalidArgument("no job is selected", hint="select rows, or all that match")
    # Where the button stands in a list, a slip would end another job.
    needs_asking = len(ids) > 1 or action in ("kill", "delete") or "ask" in form
    if ("confirm" not in form and needs_asking) or (action == "update" and not changes):
        [rows] = await context.database.read(observe.jobs(ids[:5]))
        return context.page(
            "confirm.html",
            action=action,
            label=LABELS[action],
            ids=ids,
            q="",
            back=one(form, "q"),
            jobs=rows,
            count=len(ids),
            is_more=False,
            changes=_given(form),
        )
    if action == "update" and len(ids) == 1:
        is_changed = await change(context, operate.update_job(ids[0], changes))
        return context.go(f"jobs/{ids[0]}", said="it is changed" if is_changed else "there is no such job")
    changed = await context.database.act(context.user, _call(action, ids, changes))
    context.database.forget()
    said = _said(action, changed, len(ids))
    if len(ids) == 1:
        return context.go("jobs" if action == "delete" and changed else f"jobs/{ids[0]}", said=said)
    return context.go("jobs", q=one(form, "q"), said=said)


async def _ask_for_stack(context: Context, job_id: int) -> Response:
    worker = await change(context, operate.ask_stack(job_id))
    said = f"worker {worker} was asked: the stack comes as log lines" if worker else "it executes on no living worker"
    return context.go(f"jobs/{job_id}", said=said)


async def _act_on_all(context: Context, form: Form, action: str, changes: Mapping[str, object]) -> Response:
    line = one(form, "q")
    wanted = context.filter(line)
    if not wanted:
        raise InvalidArgument(
            "there is no filter: this would match every job", hint="give at least queue:, task: or state:"
        )
    if "confirm" not in form or (action == "update" and not changes):
        return await _ask_for_all(context, action, line, _given(form))
    expected, cap = _number(form, "count"), min(_number(form, "cap") or COUNTED, 1_000_000)
    if (expected > FREELY or "more" in form) and one(form, "typed").replace(",", "") != str(expected):
        raise InvalidArgument(f"the number typed is not {expected}", hint="go back and type it")
    done, looked = _number(form, "done"), _number(form, "looked")
    upto, after = _maybe_number(form, "upto"), one(form, "after") or None
    if upto is not None:
        # Jobs that were enqueued since the question was asked are left.
        wanted = {**wanted, "id_to": upto}
    more = {"more": "yes"} if "more" in form else {}
    at_once = min(CHUNK, max(cap - looked, 1))
    [found] = await context.database.read(observe.search(order_for(action), wanted, after, at_once))
    if found.ids:
        acting = context.database.act(context.user, _call(action, found.ids, changes))
        done, looked = done + await context.unless_gone(acting), looked + len(found.ids)
    context.database.forget()
    if found.next is None or looked >= cap:
        return context.go("jobs", q=line, said=_said(action, done, looked))
    return context.page(
        "progress.html",
        label=LABELS[action],
        fields={
            "action": action, "scope": "all", "q": line, "confirm": "yes", "count": expected, "cap": cap,
            "typed": one(form, "typed"), "done": done, "looked": looked, "upto": one(form, "upto"), "after": found.next,
            **more, **_given(form),
        },
        done=done,
        looked=looked,
        goal=min(cap, expected) if expected < COUNTED else cap,
        q=line,
    )  # fmt: skip


def _call(action: str, ids: list[int], changes: Mapping[str, object]) -> Call[int]:
    """Return the statement that acts on these jobs; reads how many it changed."""
    if action == "update":
        updating = operate.update_many({"ids": ids}, changes, len(ids))
        return Call(updating.text, updating.params, lambda rows: updating.read(rows)[0])
    acting = operate.bulk(action, {"job_ids": ids}, 10_000)
    return Call(acting.text, acting.params, lambda rows: acting.read(rows).changed)


# The fields of a form that changes jobs.
_FIELDS = ("priority", "queue", "run_at", "limit_key", "no_limit_key", "args")


def _given(form: Form) -> dict[str, str]:
    """Return the fields of a change that are filled in."""
    return {name: one(form, name) for name in _FIELDS if one(form, name).strip()}


def _changes(context: Context, form: Form) -> dict[str, object]:
    """Return what a form changes of jobs. An empty field leaves what is; so do args that stand as they were shown."""
    # A browser ends the lines of a text with both characters.
    given: dict[str, object] = {name: _plain(value) for name, value in _given(form).items()}
    if "priority" in given:
        given["priority"] = _number(form, "priority")
    if given.pop("no_limit_key", None):
        given["limit_key"] = ""
    if given.get("args") == _plain(one(form, "shown")):
        given.pop("args", None)
    if "args" in given:
        context.require("args")
        try:
            is_object = isinstance(json.loads(str(given["args"])), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise InvalidArgument("args is not a JSON object", hint='write it as {"order_id": 17}')
    return given


def _is_changed(form: Form, name: str) -> bool:
    """Return whether a field has another value than was shown, where the form says what was."""
    return one(form, name).strip() != one(form, f"shown_{name}").strip() or f"shown_{name}" not in form


def _plain(text: str) -> str:
    return text.strip().replace("\r\n", "\n")


async def _ask_for_all(context: Context, action: str, line: str, changes: Mapping[str, str]) -> Response:
    [found] = await context.database.read(observe.search("newest", context.filter(line), None, COUNTED))
    [rows] = await context.database.read(observe.jobs(found.ids[:5]))
    return context.page(
        "confirm.html",
        action=action,
        label=LABELS[action],
        q=line,
        back=line,
        jobs=rows,
        count=len(found.ids),
        is_more=found.next is not None,
        # If the search was cut before it found a job, all matching jobs are older than where it stopped.
        upto=max(found.ids, default=found.next),
        must_type=len(found.ids) > FREELY or found.next is not None,
        cap=COUNTED,
        changes=changes,
    )


async def queue(context: Context) -> Response:
    """Pause, resume, purge or configure a queue."""
    form = await context.form()
    name, what = one(form, "name"), one(form, "do")
    context.require({"purge": "delete", "configure": "limits"}.get(what, "act"))
    match what:
        case "pause":
            await change(context, limits.pause_queue(name, one(form, "reason") or None, one(form, "for") or None))
        case "resume":
            await change(context, limits.resume_queue(name))
        case "configure":
            # What another operator has set since the page was read stands.
            fields = [key for key in ("priority", "weight") if _is_changed(form, key)]
            values = {key: _maybe_number(form, key) for key in fields}
            reset = [key for key, value in values.items() if value is None]
            await change(context, operate.configure_queue(name, values, reset))
        case "purge":
            if one(form, "typed") != name:
                return context.page("purge.html", name=name, wrong="typed" in form)
            chunk = await change(context, operate.bulk("purge", {"queue": name}, 10_000))
            more = "; there are more: purge again" if chunk.next_after is not None else ""
            return context.go("queue", name=name, said=f"{how_many(chunk.changed, 'job')} deleted{more}")
        case _:
            raise HTTPException(400, "there is no such action")
    return context.go("queue", name=name, said="done")


async def group(context: Context) -> Response:
    """Cancel a group with its members, after a question."""
    form = await context.form()
    context.require("act")
    group_id = _number(form, "id")
    [found] = await context.database.read(groups.find_group(group_id, COUNTED))
    if found is None:
        raise HTTPException(404, f"there is no group {group_id}, or its retention has ended")
    if one(form, "confirm") != "yes":
        return context.page("cancel_group.html", group=found[0])
    state = await change(context, operate.cancel(group_id))
    said = {"cancelled": "the group is cancelled", "requested": "its members are being cancelled"}
    return context.go("group", id=group_id, said=said.get(state or "", "there was nothing to cancel"))


async def limit(context: Context) -> Response:
    """Set or drop a limit or a breaker, set a share, pause or resume."""
    form = await context.form()
    context.require("act" if one(form, "do") in ("pause", "resume") else "limits")
    kind, target = one(form, "kind"), one(form, "target")
    if one(form, "do") == "pause":
        if one(form, "exact") and kind == "limit_key" and target.endswith("*"):
            raise InvalidArgument(
                f"a pause of {target} holds each limit_key that begins so", hint="enqueue with one that ends in no *"
            )
        await change(context, limits.pause(kind, target, one(form, "for") or None, one(form, "reason") or None))
        return context.go("limits", said="it is paused")
    if one(form, "do") == "resume":
        is_changed = await change(context, limits.resume(kind, target, one(form, "source") or "operator"))
        return context.go("limits", said="it is resumed" if is_changed else "it was not paused")
    if one(form, "do") == "drop":
        if one(form, "confirm") != "yes":
            stats = await context.database.stats()
            known = next((each for each in stats["limits"] if (each["kind"], each["target"]) == (kind, target)), None)
            return context.page("drop_limit.html", kind=kind, target=target, limit=known)
        is_changed = await change(context, limits.drop_limit(kind, target))
        return context.go("limits", said="the limit is removed" if is_changed else "there was no such limit")
    if one(form, "do") == "set_breaker":
        percent, of, pause = _maybe_number(form, "failures"), _maybe_number(form, "of"), one(form, "pause").strip()
        share = None if percent is None else percent / 100
        await change(context, limits.set_breaker(kind, target, share, of, pause or None))
        return context.go("limits", said="the breaker counts from now on")
    if one(form, "do") == "remove_breaker":
        is_changed = await change(context, limits.remove_breaker(kind, target))
        return context.go("limits", said="the breaker is removed" if is_changed else "there was no such breaker")
    if one(form, "do") == "set_share":
        await change(context, limits.set_share(target, _maybe_number(form, "weight")))
        return context.go("tenants", said="the share applies from the next claim on")
    if one(form, "do") != "set":
        raise HTTPException(400, "there is no such action")
    most, rate = _maybe_number(form, "max_executing"), _maybe_number(form, "rate")
    units, burst = _maybe_number(form, "max_cost"), _maybe_number(form, "burst")
    await change(context, limits.set_limit(kind, target, most, rate, one(form, "per") or None, units, burst))
    return context.go("limits", said="the limit applies from now on")


Action = Callable[[Context], Awaitable[Response]]


async def change(context: Context, call: Call[Any]) -> Any:
    """Run a call that changes something, in the name of the user; the next page shows it."""
    found = await context.database.act(context.user, call)
    context.database.forget()
    return found


def _said(action: str, changed: int, of: int) -> str:
    verb = {
        "run": "due now",
        "retry": "retried",
        "cancel": "cancelled or asked to stop",
        "kill": "dead",
        "delete": "deleted",
        "update": "changed",
    }
    done = how_many(of, "job") if changed == of else f"{changed} of {how_many(of, 'job')}"
    state = f"in another state, or locked{', or attempted' if action == 'update' else ''}"
    return f"{done} {verb[action]}{f'; {state}: {of - changed}' if changed < of else ''}"


def one(form: Form, name: str) -> str:
    """Return the value of a field; "" where there is none."""
    value = form.get(name, [""])[0]
    if "\0" in value:
        raise InvalidArgument(f"{name} holds a NUL", hint="PostgreSQL stores none")
    return value


def _number(form: Form, name: str) -> int:
    return _maybe_number(form, name) or 0


def _maybe_number(form: Form, name: str) -> int | None:
    value = one(form, name).strip().replace(",", "")
    if not value:
        return None
    if not re.fullmatch(r"-?[0-9]{1,18}", value):
        raise InvalidArgument(f"{name} is not a whole number", hint="leave it empty, or give digits")
    return int(value)
