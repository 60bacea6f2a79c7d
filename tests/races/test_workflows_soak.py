"""Graphs, groups and events under sessions that step on each other's transactions, at random.

Three sessions begin, roll back, go back to savepoints and commit at any isolation level while they enqueue, end,
cancel, delete and retry jobs. A statement that waits is cancelled. Then all is run to its end. What must hold: no job
is left, the net found nothing, no child was cancelled or started against its run_if, a group ended after its members,
and counts them.
PGQUEUE_SOAK=100000 runs the long form.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, maintain, reserve, value
from tests.databases import Database

ROUNDS = int(os.environ.get("PGQUEUE_SOAK", "1000")) // 25

BEGINS: list[LiteralString] = ["begin", "begin isolation level repeatable read", "begin isolation level serializable"]

# What a statement may answer beside its rows.
REFUSALS = (
    psycopg.errors.QueryCanceled,
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.ObjectNotInPrerequisiteState,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.InvalidTransactionState,
    psycopg.errors.ActiveSqlTransaction,
)

ENQUEUE: LiteralString = (
    "select pgqueue.enqueue('t', depends_on => %s::bigint[], run_if => %s, group_id => %s, key => %s, dedupe => %s)"
)
ENDS: list[LiteralString] = [
    "select pgqueue.complete(%s, %s)",
    "select pgqueue.complete(%s, %s)",
    "select * from pgqueue.exchange("
    "'w', 1, completed => array[%s::bigint], completed_reservations => array[%s::bigint])",
    "select pgqueue.fail(%s, %s, retry => false)",
    "select pgqueue.fail(%s, %s, retry_in => '1 s')",
]


class Player:
    """A session that does what chance says."""

    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.conn.execute("set statement_timeout = '250ms'")
        self.has_savepoint = False

    @property
    def is_open(self) -> bool:
        return self.conn.info.transaction_status != TransactionStatus.IDLE

    def run(self, sql: LiteralString, params: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            cursor = self.conn.execute(sql, list(params) or None)
            return cursor.fetchall() if cursor.description else []
        except REFUSALS:
            if self.conn.info.transaction_status == TransactionStatus.INERROR:
                self.conn.execute("rollback to here" if self.has_savepoint else "rollback")
            return []
        finally:
            self.has_savepoint = self.has_savepoint and self.is_open

    def transaction(self, chosen: random.Random) -> None:
        if not self.is_open:
            self.run(chosen.choices(BEGINS, [4, 1, 1])[0])
        elif self.has_savepoint and chosen.random() < 0.4:
            self.run("rollback to here")
        elif not self.has_savepoint and chosen.random() < 0.3:
            self.run("savepoint here")
            self.has_savepoint = True
        else:
            self.run(chosen.choice(["commit", "commit", "rollback"]))


class Round:
    """What one round enqueued, and what hands did to it."""

    def __init__(self, seed: int) -> None:
        self.chosen = random.Random(seed)
        self.jobs: list[int] = []
        self.groups: list[int] = []
        self.events = [f"event {seed} {number}" for number in range(4)]
        self.held: list[tuple[int, int]] = []
        # Jobs that an operator touched: they do not always become what run_if says.
        self.touched: set[int] = set()

    def some(self, most: int) -> list[int]:
        # The newest, which are still on their way.
        newest = self.jobs[-8:]
        return self.chosen.sample(newest, min(most, len(newest)))

    def touch(self, most: int) -> list[int]:
        found = self.some(most)
        self.touched.update(found)
        return found

    def step(self, player: Player, clock: Clock) -> None:
        chosen = self.chosen
        weights = {
            "transaction": 26, "enqueue": 18, "group": 6, "claim": 18, "end": 30, "operate": 10, "read": 8, "wait": 6
        }  # fmt: skip
        what = chosen.choices(list(weights), list(weights.values()))[0]
        if what == "transaction":
            player.transaction(chosen)
        elif what == "enqueue":
            self.enqueue(player)
        elif what == "group":
            self.group(player)
        elif what == "claim":
            found = player.run("select id, reservation from pgqueue.reserve('w', %s)", [chosen.randint(1, 3)])
            self.held += [(row[0], row[1]) for row in found]
        elif what == "end" and self.held:
            player.run(chosen.choice(ENDS), self.held.pop(chosen.randrange(len(self.held))))
        elif what == "operate" and self.jobs:
            self.operate(player)
        elif what == "read":
            clock.advance("300 ms")
            player.run(chosen.choice(["select pgqueue._read_notes(100)", "select * from pgqueue.maintain()"]))
        elif what == "wait":
            self.wait(player)

    def enqueue(self, player: Player) -> None:
        chosen = self.chosen
        parents = self.some(chosen.choice([0, 1, 2, 2, 3]))
        if self.groups and chosen.random() < 0.25:
            parents.append(chosen.choice(self.groups))
        group = chosen.choice(self.groups + [job for job, _ in self.held]) if self.groups else None
        run_if = chosen.choice([None, None, "finished", "failed"]) if parents else None
        found = player.run(
            ENQUEUE,
            [
                parents or None,
                run_if,
                group if chosen.random() < 0.4 else None,
                chosen.choice([None, None, None, "k"]),
                "d" if chosen.random() < 0.1 else None,
            ],
        )
        self.jobs += [row[0] for row in found if row[0] not in self.jobs]

    def group(self, player: Player) -> None:
        chosen = self.chosen
        if not self.groups or chosen.random() < 0.5:
            parents = self.some(1) if chosen.random() < 0.3 else []
            outer = chosen.choice(self.groups) if self.groups and chosen.random() < 0.3 else None
            found = player.run(
                "select pgqueue.open_group('g', depends_on => %s::bigint[], group_id => %s)", [parents or None, outer]
            )
            self.groups += [row[0] for row in found]
        elif chosen.random() < 0.8:
            player.run("select pgqueue.close_group(%s)", [chosen.choice(self.groups)])
        else:
            group = chosen.choice(self.groups)
            self.touched.add(group)
            player.run("select pgqueue.cancel(%s)", [group])

    def operate(self, player: Player) -> None:
        what = self.chosen.choices(["retry", "cancel", "delete", "kill", "retry_many"], [6, 3, 2, 1, 2])[0]
        if what == "retry":
            player.run("select pgqueue.retry(%s)", self.touch(1))
        elif what == "cancel":
            player.run("select pgqueue.cancel(%s)", self.touch(1))
        elif what == "delete":
            player.run("select pgqueue.delete(%s)", self.touch(1))
        elif what == "kill":
            player.run("select * from pgqueue.kill_many(job_ids => %s)", [self.touch(2)])
        else:
            player.run("select * from pgqueue.retry_many(job_ids => %s)", [self.touch(4)])

    def wait(self, player: Player) -> None:
        event = self.chosen.choice(self.events)
        if self.held and self.chosen.random() < 0.5:
            parents = self.some(2)
            if self.groups and self.chosen.random() < 0.4:
                parents.append(self.chosen.choice(self.groups))
            if self.chosen.random() < 0.4:
                parents.append(self.chosen.choice(self.held)[0])
            player.run("select pgqueue.suspend(%s, %s, depends_on => %s)", [*self.chosen.choice(self.held), parents])
        elif self.held and self.chosen.random() < 0.6:
            player.run("select * from pgqueue.await_event(%s, %s, 'w', %s)", [*self.chosen.choice(self.held), event])
        else:
            player.run("select pgqueue.emit_event(%s, '1', %s)", [event, self.chosen.choice(["0", "1 day"])])


def run_to_the_end(conn: psycopg.Connection, clock: Clock, played: Round) -> None:
    for group in played.groups:
        call(conn, "close_group", group)
    for event in played.events:
        call(conn, "emit_event", event, Jsonb(1))
    for number in range(60):
        maintain(conn)
        for row in reserve(conn, 100):
            call(conn, "complete", row.id, row.reservation)
        # Leases of jobs that a session held lapse as well.
        clock.advance("1 s" if number < 25 else "30 s")
        if not value(conn, "select exists (select from pgqueue.jobs) or exists (select from pgqueue.notes)"):
            return


# A parent that came back, because one of its own did, ends a second time after its child started.
CHILDREN = """
with recursive came_back (id) as (
    select unnest(%(touched)s::bigint[])
    union
    select n.id
    from came_back c
    cross join lateral (
        select h.id from pgqueue.history h where h.depends_on @> array[c.id]
        union all
        select h.group_id from pgqueue.history h where h.id = c.id and h.group_id is not null
    ) n
)
select c.id, c.run_if, c.state, c.errors -> -1 ->> 'class', p.states
from pgqueue.history c
cross join lateral (
    select
        array_agg(coalesce(h.state::text, 'deleted')) as states,
        bool_and(coalesce(h.state = 'succeeded', false)) as good,
        bool_or(h.finished_at > c.reserved_at) as early,
        bool_or(d.id in (select b.id from came_back b)) as again
    from unnest(c.depends_on) d (id)
    left join pgqueue.history h on h.id = d.id
) p
where c.id = any (%(all)s) and c.depends_on is not null and c.id <> all (%(touched)s)
    and (
        c.errors -> -1 ->> 'class' = 'ParentFailed' and (p.good or c.run_if = 'finished')
        or c.task <> '@group' and c.reserved_at is not null and not p.again
            and (
                c.run_if = 'succeeded' and not p.good
                or c.run_if = 'failed' and p.good
                or c.run_if <> 'failed' and p.early
            )
    )
"""

GROUPS = """
select g.id, g.state, g.result, m.states
from pgqueue.history g
cross join lateral (
    select
        max(h.finished_at) as ended_at, array_agg(h.state) as states,
        jsonb_build_object(
            'succeeded', count(*) filter (where h.state = 'succeeded'),
            'dead', count(*) filter (where h.state = 'dead'),
            'cancelled', count(*) filter (where h.state = 'cancelled')
        ) as counted
    from pgqueue.history h
    where h.group_id = g.id
) m
where g.id = any (%(all)s) and g.task = '@group'
    and (
        m.ended_at > g.finished_at
        -- A member that is deleted after the end has been counted.
        or g.result <> m.counted and not %(deleted)s
    )
"""


@pytest.mark.long
@pytest.mark.timeout(120 + 4 * ROUNDS)
def test_nothing_is_lost_between_transactions(database: Database, conn: psycopg.Connection, clock: Clock) -> None:
    for seed in range(ROUNDS):
        played = Round(seed)
        players = [Player(database.dsn) for _ in range(3)]
        for _ in range(played.chosen.randint(60, 140)):
            played.step(played.chosen.choice(players), clock)
        for player in players:
            if player.is_open:
                player.run(played.chosen.choice(["commit", "rollback"]))
            player.conn.close()
        run_to_the_end(conn, clock, played)

        left = conn.execute("select id, task, state, blocked_on, depends_on, group_id from pgqueue.jobs").fetchall()
        assert left == [], seed
        assert value(conn, "select max(unblocked) from pgqueue.maintenance_runs") == 0, seed
        known = {"all": played.jobs + played.groups, "touched": list(played.touched)}
        gone = value(
            conn,
            "select exists (select from unnest(%s::bigint[]) t (id)"
            " where not exists (select from pgqueue.history h where h.id = t.id))",
            known["touched"],
        )
        assert conn.execute(CHILDREN.encode(), known).fetchall() == [], seed
        assert conn.execute(GROUPS.encode(), {**known, "deleted": gone}).fetchall() == [], seed
