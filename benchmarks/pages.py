"""How long does a page take beside a million live jobs and as many in history? `--scale 10`: ten million of each.

The live jobs wait in 30 queues and 200 tasks, a tenth of them in 201 groups, one of them large; of the others one in
twenty is dead, in all queues. Three queues are late. A page is timed from the request to its last byte by a dashboard
that has no answer to serve again; each statement as its page sends it, by the client. Medians of three and of five.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import httpx
import psycopg

from pgqueue._filters import parse
from pgqueue.db import groups, observe, operate, samples
from pgqueue.db.call import Call, perform
from pgqueue.web import EVERYTHING, User, dashboard
from pgqueue.web import database as pool

from .beside import fill_beside
from .harness import Bound, Connection, Report, Server, median, sized

_LIVE = sized(1_000_000, least=20_000)
_MOST_MS = 200.0
_PAGES = (
    *("/", "/queues", "/queue?name=queue1", "/jobs", "/jobs?q=state:dead", "/jobs/5000", "/dead", "/tasks", "/workers"),
    *("/limits", "/groups", "/schedules", "/health", "/metrics", "/series?range=1+h"),
)


def run(server: Server) -> Report:
    with server.database("pages") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        took = fill_beside(dsn, _LIVE, late=3)
        connection.execute("select pgqueue.hello('w', null, '{\"concurrency\": 12}'), pgqueue.beat('w')")
        connection.execute("select pgqueue.maintain()")
        times = {name: _time(connection, ask) for name, ask in _asked(connection).items()}
        # A sample that tells of now is from the last half minute.
        connection.execute("select pgqueue._sample(pgqueue._clock()), pgqueue.beat('w')")
        pages = {page: asyncio.run(_load(dsn, page)) for page in _PAGES}
    slowest, slowest_page = max(times, key=times.__getitem__), max(pages, key=pages.__getitem__)
    return Report(
        f"pages: {_LIVE:,} live jobs and {_LIVE:,} in history, ms; filled in {took:.0f} s",
        ("page or statement", "ms", f"within {_MOST_MS:g} ms"),
        [(name, f"{spent:.1f}", "yes" if spent <= _MOST_MS else "no") for name, spent in {**pages, **times}.items()],
        {"slowest_page_ms": pages[slowest_page], "slowest_ms": times[slowest], "jobs": 2 * _LIVE, "fill_s": took},
        [
            Bound(f"Slowest page, {slowest_page}, ms", pages[slowest_page], _MOST_MS, is_ratio=False),
            Bound(f"Slowest statement, {slowest}, ms", times[slowest], _MOST_MS, is_ratio=False),
        ],
    )


async def _load(dsn: str, page: str) -> float:
    """Return the milliseconds of a page whose answers are too old to serve again."""
    spent: list[float] = []
    app = dashboard(dsn, authorize=lambda request: User("bench", EVERYTHING))
    transport = httpx.ASGITransport(app=app)
    an_hour_later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600.0 * len(spent))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        with mock.patch.object(pool, "time", an_hour_later):
            # The first one connects, and reads the templates.
            for _ in range(4):
                began = time.perf_counter()
                answer = await client.get(page)
                spent.append(1000 * (time.perf_counter() - began))
                answer.raise_for_status()
    return median(spent[1:])


def _asked(connection: Connection) -> dict[str, Callable[[], object]]:
    def ask(call: Call[Any]) -> Callable[[], object]:
        return lambda: perform(connection, call)

    def jobs(line: str) -> Callable[[], object]:
        def find() -> object:
            return perform(
                connection, observe.jobs(perform(connection, observe.search("newest", parse(line), None, 50)).ids)
            )

        return find

    return {
        "overview: stats(recent => true)": ask(observe.stats(recent=True)),
        "overview: why_late()": ask(observe.why_late()),
        "overview: what executes": ask(observe.executing()),
        "overview: rates of queues": ask(samples.lately(60)),
        "overview: usual times of runs, every 10 min": ask(samples.runs_of_a_day()),
        "overview: dead within a day, every minute": ask(samples.died(86_400)),
        "overview: trends, every minute": ask(samples.trends()),
        "tasks: how they perform, every minute": ask(samples.ended_by_task(3600)),
        "a plot": ask(samples.series("queue1", 3600)),
        "dead: what is usual in a day, every 10 min": ask(samples.usual_deaths()),
        "dead: how long they are kept, every minute": ask(observe.dead_kept(None)),
        "dead_groups()": ask(observe.dead_groups(None)),
        "doctor()": ask(observe.doctor()),
        "metrics()": ask(observe.metrics()),
        "jobs, newest": jobs(""),
        "jobs, queue:queue3 state:waiting": jobs("queue:queue3 state:waiting"),
        "jobs, state:dead": jobs("state:dead"),
        "jobs, tag:vip": jobs("tag:vip"),
        "jobs, args.user.id:17": jobs("args.user.id:17"),
        "jobs, group:1": jobs("group:1"),
        "jobs, group:1 and a task that there is not": jobs("group:1 task:nothing"),
        "jobs, line: that there is not": jobs("line:nothing"),
        "groups": ask(groups.list_groups(50)),
        "members of a group": ask(groups.relatives_of_group(1, 200)),
        "jobs, a task that there is not": jobs("task:nothing"),
        "one job": ask(observe.job(5000)),
        "explain()": ask(operate.explain(5000)),
        "workers": ask(observe.workers()),
        "memory of workers": ask(observe.worker_memory()),
    }


def _time(connection: Connection, ask: Callable[[], object]) -> float:
    spent = []
    for _ in range(5):
        began = time.perf_counter()
        ask()
        spent.append(1000 * (time.perf_counter() - began))
    return median(spent)
