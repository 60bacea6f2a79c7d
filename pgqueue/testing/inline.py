"""Call handlers where they are enqueued, without a database."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pgqueue.app import App
from pgqueue.db import drivers
from pgqueue.db.call import Call
from pgqueue.db.json import from_json
from pgqueue.errors import ConfigError
from pgqueue.hooks import Hooks
from pgqueue.tasks import Task
from pgqueue.testing.access import stepped
from pgqueue.testing.attempts import loop_runs
from pgqueue.testing.perform import Given, Performance, Performed

_ids = itertools.count(1)


@contextmanager
def inline(app: App) -> Iterator[list[Performed]]:
    """Run tasks of this App where they are enqueued, within a `with` block; yields the list of performed jobs.

    It holds for the methods of a task and for `pgqueue.enqueue`, `enqueue_many` and `enqueue_outcome` of a task, in all
    threads; no connection is used, so any will do. Middleware, validation, codec and JSON work as usual; delays,
    queues, keys and retries have no effect. The enqueue raises the exception of the handler. An async handler needs an
    enqueue that is awaited, or a thread without an event loop. Not for enqueues by a task's name, by
    `enqueue_batch`, or in SQL.

        with inline(app) as ran:
            place_order(None, items)
        assert [each.job.task for each in ran] == ["send_receipt"]
    """
    ran: list[Performed] = []

    def deliver(connection: Any, call: Call[Any]) -> Any:
        # As `pgqueue.db.produce` writes them: the task, its arguments, once or many times, and the options by name.
        name, texts, *values = call.params
        options = dict(zip(re.findall(rb"(\w+) => %s", call.text), values, strict=True))
        task = app.tasks.get(str(name))
        if task is None:
            raise ConfigError(f"inline: this App has no task {name!r}", hint="give inline() the App that has it")
        every = [str(each) for each in texts] if isinstance(texts, list) else [str(texts)]
        rows = [(next(_ids), "inserted") for _ in every]
        if drivers.is_async(connection) or (connection is None and task.is_async and loop_runs()):
            return _run_async(app, task, every, _given(options), ran, lambda: call.read(rows))
        for written in every:
            ran.append(stepped(Performance(task, None, app, True, on_loop=False).run(written, _given(options))))
        return call.read(rows)

    every: list[Hooks] = list({id(each): each for each in (app, *(task.hooks for task in app.tasks.values()))}.values())
    before = [each.deliver for each in every]
    for each in every:
        each.deliver = deliver
    try:
        yield ran
    finally:
        for each, previous in zip(every, before, strict=True):
            each.deliver = previous


async def _run_async(
    app: App, task: Task[Any, Any], every: list[str], given: Given, ran: list[Performed], answer: Callable[[], Any]
) -> Any:
    for written in every:
        ran.append(await Performance(task, None, app, True, on_loop=True).run(written, given))
    return answer()


def _given(options: dict[bytes, Any]) -> Given:
    headers, declared = options.get(b"headers"), options.get(b"declared")
    declared_queue = None if declared is None else from_json(declared).get("queue")
    return Given(
        headers=None if headers is None else from_json(headers),
        queue=options.get(b"queue") or declared_queue or "default",
        key=options.get(b"key"),
    )
