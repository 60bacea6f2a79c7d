"""Graphs, groups and stories for the load: what producers enqueue of jobs that wait for others."""

from __future__ import annotations

import random
import time
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from tests.chaos.recorder import Intent

# What may be cancelled, for a parent's sake or with its group.
CANCELLABLE = frozenset({"child", "group_after", "member_after"})
GROUPS = frozenset({"group", "group_after"})
# Consumers in SQL take of it, and end jobs from old snapshots.
GRAPHS = "graphs"
STORIES = "stories"

_KEEP = 200


class Weaver:
    """Makes what waits for something else, for one producer.

    What one transaction has committed, later ones depend on, join, close and emit.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        # When a committed parent or open group was refused as unknown.
        self.refusals: list[float] = []
        self._committed: list[int] = []
        self._open: list[int] = []
        self._events: list[str] = []
        self._new: tuple[list[int], list[int], list[str]] = ([], [], [])
        self._closing: list[int] = []

    def weave(self, conn: psycopg.Connection, token: str) -> list[Intent]:
        """Enqueue one thing of some kind in the open transaction."""
        self._new, self._closing = ([], [], []), []
        ways = [self._graph, self._late_child, self._group, self._rest_of_group, self._story, self._emit]
        [way] = self.rng.choices(ways, [30, 20, 15, 10, 20, 5])
        return way(conn, token)

    def learns(self, committed: bool, known: bool) -> None:
        """What became of the transaction; `known`: it was answered."""
        if committed:
            for kept, new in zip((self._committed, self._open, self._events), self._new, strict=True):
                kept.extend(new)
                del kept[:-_KEEP]
        if not committed or not known:
            # Once more: to close a group twice does no harm.
            self._open.extend(self._closing)
        self._new, self._closing = ([], [], []), []

    def _graph(self, conn: psycopg.Connection, token: str) -> list[Intent]:
        jobs: list[int] = []
        intents: list[Intent] = []
        for number in range(self.rng.randint(2, 9)):
            parents = self.rng.sample(jobs, min(len(jobs), self.rng.randint(0 if number < 2 else 1, 3)))
            intents.append(self._node(conn, token, parents))
            jobs.append(intents[-1].job)
        self._new[0].extend(jobs)
        return intents

    def _late_child(self, conn: psycopg.Connection, token: str) -> list[Intent]:
        """Of jobs that may have ended, or end just now."""
        if not self._committed:
            return []
        newest = self._committed[-20:]
        parents = self.rng.sample(newest, min(len(newest), self.rng.randint(1, 3)))
        try:
            with conn.transaction():
                intent = self._node(conn, token, parents)
        except psycopg.errors.InvalidParameterValue:
            self.refusals.append(time.time())
            return []
        self._new[0].append(intent.job)
        return [intent]

    def _node(self, conn: psycopg.Connection, token: str, parents: list[int]) -> Intent:
        rng = self.rng
        options: dict[str, Any] = {"queue": GRAPHS}
        if parents:
            options["depends_on"] = parents
            options["run_if"] = rng.choices(["succeeded", "finished", "failed"], [5, 3, 2])[0]
        if rng.random() < 0.2:
            # Its order crosses the dependency: who waits for a parent holds no place.
            options["key"] = f"node{rng.randrange(20)}"
        delay = round(rng.random() * 0.5, 2) if rng.random() < 0.2 else 0.0
        task = "fails" if rng.random() < 0.2 else "linked"
        return self._enqueue(conn, task, "child" if parents else "node", {"token": token}, delay, options)

    def _group(self, conn: psycopg.Connection, token: str) -> list[Intent]:
        rng = self.rng
        intents: list[Intent] = []
        after: list[int] | None = None
        if rng.random() < 0.2:
            intents.append(self._node(conn, token, []))
            after = [intents[0].job]
        kind = "group" if after is None else "group_after"
        group = _value(conn, "select pgqueue.open_group(%s, depends_on => %s)", token, after)
        intents.append(Intent(group, kind, "@groups", None, 0.0))
        inner = None
        if rng.random() < 0.3:
            inner = _value(conn, "select pgqueue.open_group(%s, group_id => %s)", token, group)
            # It is cancelled with the outer one.
            intents.append(Intent(inner, kind, "@groups", None, 0.0))
        for _ in range(rng.randint(0, 5)):
            joins = inner if inner is not None and rng.random() < 0.5 else group
            intents.append(self._member(conn, token, joins, kind))
        if inner is not None:
            _value(conn, "select pgqueue.close_group(%s)", inner)
        if after is not None or rng.random() < 0.7:
            _value(conn, "select pgqueue.close_group(%s)", group)
        else:
            self._new[1].append(group)
        run_if = rng.choice(["succeeded", "finished", "failed"])
        options = {"queue": GRAPHS, "depends_on": [group], "run_if": run_if}
        intents.append(self._enqueue(conn, "linked", "child", {"token": token}, 0.0, options))
        return intents

    def _rest_of_group(self, conn: psycopg.Connection, token: str) -> list[Intent]:
        """Members that come in a later transaction, and the close in another one."""
        if not self._open:
            return []
        group = self.rng.choice(self._open)
        try:
            with conn.transaction():
                if self.rng.random() < 0.5:
                    return [self._member(conn, token, group, "group") for _ in range(self.rng.randint(1, 3))]
                _value(conn, "select pgqueue.close_group(%s)", group)
        except psycopg.errors.InvalidParameterValue:
            self.refusals.append(time.time())
            self._open.remove(group)
            return []
        self._open.remove(group)
        self._closing.append(group)
        return []

    def _member(self, conn: psycopg.Connection, token: str, group: int, kind: str) -> Intent:
        task = self.rng.choices(["linked", "member", "fails"], [5, 4, 1])[0]
        kind = kind.replace("group", "member")
        args: dict[str, Any] = {"token": token}
        if task == "member":
            args |= {"kind": kind, "depth": self.rng.randint(0, 2)}
        queue = STORIES if task == "member" else GRAPHS
        return self._enqueue(conn, task, kind, args, 0.0, {"queue": queue, "group_id": group})

    def _story(self, conn: psycopg.Connection, token: str) -> list[Intent]:
        """Jobs with steps that wait for an event, and those that emit it: before, while or after they wait."""
        rng = self.rng
        event = f"event-{token}"
        intents = []
        for _ in range(rng.randint(1, 3)):
            args = {
                "token": token,
                "event": event,
                "within": f"{rng.randint(50, 600)} ms" if rng.random() < 0.3 else None,
                "parts": rng.choice([0, 0, 1, 2]),
            }
            options: dict[str, Any] = {"queue": STORIES}
            if rng.random() < 0.3:
                options["key"] = f"told{rng.randrange(30)}"
            task = rng.choice(["story", "story_sync"])
            intents.append(self._enqueue(conn, task, "story", args, 0.0, options))
        for _ in range(rng.choice([1, 1, 2])):
            args = {"token": token, "event": event}
            delay = round(rng.choice([0.0, rng.random(), rng.random()]), 2)
            intents.append(self._enqueue(conn, "emitting", "emitting", args, delay, {"queue": GRAPHS}))
        self._new[2].append(event)
        return intents

    def _emit(self, conn: psycopg.Connection, token: str) -> list[Intent]:
        """An event that a job emits as well, now or before: the first payload stands."""
        if self._events:
            event = self.rng.choice(self._events[-10:])
            _value(conn, "select pgqueue.emit_event(%s, %s)", event, Jsonb({"by": token}))
        return []

    def _enqueue(
        self,
        conn: psycopg.Connection,
        task: str,
        kind: str,
        args: dict[str, Any],
        delay: float,
        options: dict[str, Any],
    ) -> Intent:
        named = "".join(f", {name} => %({name})s" for name in options)
        job = _value(
            conn,
            f"select pgqueue.enqueue(%(task)s, %(args)s, delay => make_interval(secs => %(delay)s){named})",
            {**options, "task": task, "args": Jsonb(args), "delay": delay},
        )
        return Intent(job, kind, options["queue"], options.get("key"), delay)


def _value(conn: psycopg.Connection, query: str, *params: Any) -> Any:
    row = conn.execute(query.encode(), params[0] if params and isinstance(params[0], dict) else params).fetchone()
    assert row is not None
    return row[0]
