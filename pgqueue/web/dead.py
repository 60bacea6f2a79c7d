"""The page of the dead: by their error, with what is behind the masks, and what became of those that were retried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from pgqueue.db import observe, samples
from pgqueue.web import dead_groups, dying, render
from pgqueue.web.context import Context
from pgqueue.web.overview import DAY, USUAL

# Parts that the page can do without.
_MASKS, _FATES = "what is behind the masks", "what became of those that were retried"
_KEPT = "how long they are kept"

# Within how many seconds the last job of a group died, by the name of the choice.
SINCE = {"1 h": 3600, "1 d": DAY, "7 d": 604_800}


async def dead(context: Context) -> Response:
    """The dead jobs by their last error, those that fit a text and a time. The group that the address names is open."""
    name, now, shared = context.query("queue") or None, context.now(), context.database.shared
    groups = await dead_groups.read(context, name)
    stats = await context.database.stats()
    retries = await context.part(_FATES, shared("fates", 60.0, observe.retry_fates), [])
    fates = dying.fates(retries)
    opened, behind = context.query("open"), None
    group = next((each for each in groups if render.group_key(each) == opened), None)
    if group is not None:
        reading = shared(("lines", name, opened), 60.0, lambda: observe.dead_lines(group, name))
        behind = dying.behind(group["fingerprint"], await context.part(_MASKS, reading, []))
    wanted, since = context.query("find").strip(), context.query("since")
    seconds = SINCE.get(since)
    shown = [
        each
        for each in groups
        if _fits(each, wanted) and (seconds is None or render.is_within(each["last_at"], seconds, now))
    ]
    usual = await context.part(USUAL, shared("usual deaths", 600.0, samples.usual_deaths), None)
    in_hour = await shared("died in an hour", 60.0, lambda: samples.died(3600))
    today = await shared("dead today", 60.0, lambda: samples.died(DAY))
    kept_for, oldest = await context.part(
        _KEPT, shared(("kept", name), 60.0, lambda: observe.dead_kept(name)), (None, None)
    )
    listed = {render.group_key(each) for each in groups}
    return context.page(
        "dead.html",
        groups=groups,
        shown=shown,
        within={render.group_key(each): dying.died_within(each, seconds, now) for each in shown},
        given={"queue": name or "", "find": wanted, "since": since if since in SINCE else ""},
        since=SINCE,
        queue=name,
        opened=opened if behind else "",
        behind=behind,
        fates={each.key: each for each in reversed(fates)},
        # All jobs of these have left the dead.
        gone=[each for each in fates if each.key not in listed][:5] if name is None else [],
        retried=sum(each.jobs for each in fates),
        again=sum(each.dead for each in fates),
        died=[
            dying.beside_usual(jobs, None if usual is None else usual / parts, of_all=name is not None)
            for jobs, parts in ((in_hour, 24), (today, 1))
        ],
        kept_for=dying.kept_in_words(kept_for, oldest, now),
        kept=render.counted(
            next((each for each in stats["queues"] if each["queue"] == name), {}) if name else stats["total"], "dead"
        ),
        new=sum(render.is_within(each["first_at"], DAY, now) for each in groups),
        growing=sum(each["jobs"] > 1 and render.is_within(each["last_at"], 600, now) for each in groups),
        now=now,
    )


def _fits(group: Mapping[str, Any], wanted: str) -> bool:
    """Tell whether a text is part of the task, a queue, the class or the line of a group."""
    texts = (group["task"], *group["queues"], group["class"], group["fingerprint"], group["line"])
    return any(wanted.casefold() in str(each or "").casefold() for each in texts)
