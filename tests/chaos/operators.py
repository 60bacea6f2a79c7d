"""Faults made by others who work in the same database: locks on rows, cancels, steps of the clock, partitions.

None of them does anything that an operator may not do. Each lasts longer than a lease where that matters, and leaves
the database as it was.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.chaos.checker import COMMITTED, UNKNOWN
from tests.chaos.faults import PAST_LEASE_S, Fault
from tests.chaos.load import TENANTS
from tests.chaos.recorder import Intent, ProducerLog
from tests.chaos.scene import Scene


def executing_rows_locked(scene: Scene, rng: random.Random) -> str | None:
    """Rows of executing jobs are locked by others for longer than a lease, while their workers extend it."""
    log = ProducerLog(scene.records.directory)
    key = f"held-{secrets.token_hex(4)}"
    with ExitStack() as stack, suppress(psycopg.Error):
        conn = stack.enter_context(scene.control())
        lengths = [{"seconds": round(rng.uniform(1.0, 2 * PAST_LEASE_S), 2)} for _ in range(8)]
        jobs = _enqueue(conn, log, "lasting", lengths[:1], key) + _enqueue(conn, log, "lasting", lengths[1:])
        held = _executing(conn, jobs)
        for n, (job, reservation) in enumerate(held):
            other = stack.enter_context(scene.control())
            other.execute("set lock_timeout = '1s'")
            other.execute("begin")
            stack.callback(_roll_back, other)
            with suppress(psycopg.errors.LockNotAvailable):
                if job == jobs[0]:
                    _park_behind(other, key)
                elif n % 3 == 0:
                    other.execute("select pgqueue.cancel(%s)", [job])
                elif n % 3 == 1:
                    other.execute("select from pgqueue.jobs where id = %s for update", [job])
                else:
                    other.execute("select pgqueue.progress(%s, %s, 0.5)", [job, reservation])
            # Not all at once: the first ends while others are held.
            time.sleep(rng.random() * 0.2)
        time.sleep(PAST_LEASE_S + rng.random())
    return None


def statements_cancelled_under_limits(scene: Scene, rng: random.Random) -> str | None:
    """Cancels and statement timeouts at any moment, in sessions that go on afterwards."""
    scene.is_hurried.set()
    try:
        with suppress(psycopg.Error), scene.control() as conn:
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                conn.execute(_CANCEL.encode())
                time.sleep(rng.random() * 0.02)
    finally:
        scene.is_hurried.clear()
    return None


def clock_steps_slightly(scene: Scene, rng: random.Random) -> str | None:
    """The queue's clock is set forward and back by 1 ms to 5 s, once or again and again."""
    with scene.of_server:
        # Most are shorter than the pause between two runs of maintenance, which sees only the longer ones.
        size = rng.choice((0.001, 0.01, 0.1, 0.3, 0.5, 0.8, 0.8, 1.0, 2.0, 5.0))
        for _ in range(rng.choice((1, 2, 6))):
            off = sum(step.seconds for step in scene.steps if abs(step.seconds) < 60)
            # Never far from the true time, so that what is delayed is not delayed for long.
            scene.step_clock(-math.copysign(size, off) if abs(off) > 3 else rng.choice((-size, -size, size)))
            time.sleep(rng.random() * 1.2)
    return None


def worker_backends_terminated(scene: Scene, rng: random.Random) -> str | None:
    """One random session of each worker is ended every quarter of a second, while all of them run jobs."""
    log = ProducerLog(scene.records.directory)
    with suppress(psycopg.Error), scene.control() as conn:
        # Jobs come all the time: one link of a worker claims while the other is made anew.
        for n in range(100):
            _enqueue(conn, log, "steady", [{}] * 8)
            if n % 5 == 0:
                conn.execute(_END_SESSIONS.encode())
            time.sleep(0.03)
    return None


def partitions_changed(scene: Scene, rng: random.Random) -> str | None:
    """Partitions of history are detached, dropped, replaced and moved away by hand; their rows come back in the end."""
    began = time.time()
    with ExitStack() as stack, suppress(psycopg.Error):
        stack.enter_context(scene.of_server)
        # What is detached is attached again by maintenance, within seconds.
        stack.callback(lambda: scene.records.away.append((began, time.time() + 10)))
        conn = stack.enter_context(scene.control())
        # Queues for the lock as any statement does, and gives up soon, so that completions go on.
        conn.execute("set lock_timeout = '1s'")
        rows = conn.execute(_PARTITIONS.encode()).fetchall()
        used = [row for row in rows if row[3]]
        later = [row for row in rows if not row[3]]
        for name, parent, bounds, _ in rng.sample(later, min(3, len(later))) + rng.sample(used, min(1, len(used))):
            is_used = (name, parent, bounds, True) in used
            ways = [_detach, _replace, _move_away, _put_another_there]
            way = rng.choice(ways if is_used else [*ways, _drop])
            with suppress(psycopg.errors.LockNotAvailable):
                moved = way(conn, name, parent, bounds)
                if moved:
                    time.sleep(2)
                    _put_back(scene, moved)
            time.sleep(rng.random() * 0.5)
    return None


def paused_and_throttled(scene: Scene, rng: random.Random) -> str | None:
    """A queue, a task or limit_keys are paused or throttled for some seconds, while jobs of them come."""
    with scene.of_server, suppress(psycopg.Error), scene.control() as conn:
        # No step of the clock shortens them.
        for _ in range(rng.choice((1, 2))):
            kind, target = rng.choice(_PAUSABLE)
            seconds = rng.uniform(STILL_FROM_S + 0.5, STILL_FROM_S + 2)
            if rng.random() < 0.5:
                conn.execute("select pgqueue.throttle(%s, %s, '8 s')", [kind, target])
                source = "throttle"
            else:
                # It ends by itself, if this session does not come to it.
                until = "select pgqueue.pause(%s, %s, pgqueue._clock() + interval '8 s')"
                conn.execute(until, [kind, target])
                source = "operator"
            began = time.time() + STILL_FROM_S
            time.sleep(seconds)
            scene.records.still.append((kind, target, began, time.time()))
            conn.execute("select pgqueue.resume(%s, %s, %s)", [kind, target, source])
    return None


def queues_switched(scene: Scene, rng: random.Random) -> str | None:
    """Queues are made fair, and plain again, while jobs come; what a tenant may have of them changes as well."""
    with suppress(psycopg.Error), scene.control() as conn:
        for _ in range(rng.randint(3, 8)):
            queue = rng.choice(("bulk", "mixed", "keyed", "effects", "limits"))
            if rng.random() < 0.6:
                of = rng.choice((None, 0.3, 0.9))
                fair = "select pgqueue.configure_queue(%s, fair_by => 'limit_key', max_share => %s)"
                conn.execute(fair, [queue, of])
            else:
                conn.execute("select pgqueue.configure_queue(%s, reset => '{fair_by,max_share}')", [queue])
            conn.execute(
                "select pgqueue.set_share(%s, %s)", [f"tenant{rng.randrange(TENANTS)}", rng.choice((None, 1, 5))]
            )
            time.sleep(rng.random() * 0.8)
    return None


# From this long after the commit of a pause no claim is under way that began before it.
STILL_FROM_S = 2.0
_PAUSABLE = [
    ("task", "rated"),
    ("task", "limited"),
    ("task", "keyed"),
    ("limit_key", "slot*"),
    ("queue", "mixed"),
    ("limit_key", "tenant0"),
    ("limit_key", "tenant*"),
]

OPERATOR_FAULTS: list[Fault] = [
    paused_and_throttled,
    queues_switched,
    executing_rows_locked,
    statements_cancelled_under_limits,
    clock_steps_slightly,
    worker_backends_terminated,
    partitions_changed,
]

_END_SESSIONS = """
select pg_terminate_backend(a.pid)
from (
    select distinct on (s.application_name) s.pid
    from pg_stat_activity s
    where s.datname = current_database() and s.application_name like 'pgqueue %'
    order by s.application_name, random()
) a
"""

_CANCEL = """
select pg_cancel_backend(a.pid)
from pg_stat_activity a
where a.datname = current_database() and a.state = 'active' and a.pid <> pg_backend_pid()
    and (a.application_name like 'pgqueue %' or a.application_name like 'chaos sql%')
order by random()
limit 1
"""

# A partition is in use where jobs that end today and tomorrow go. Others may have rows: of jobs that died, say.
_PARTITIONS = """
select c.relname, p.relname, pg_get_expr(c.relpartbound, c.oid), c.relname = any (array(
    select 'history_d_' || to_char((now() at time zone 'UTC')::date + d.n, 'YYYYMMDD') from generate_series(0, 2) d (n)
))
from pg_inherits i
join pg_class c on c.oid = i.inhrelid
join pg_class p on p.oid = i.inhparent
where i.inhparent in ('pgqueue.history_days'::regclass, 'pgqueue.history_months'::regclass)
    and c.relname ~ '^history_[dm]_[0-9]+$'
order by 1
"""


def _enqueue(
    conn: psycopg.Connection, log: ProducerLog, task: str, args: Sequence[Mapping[str, object]], key: str | None = None
) -> list[int]:
    token = secrets.token_hex(6)
    outcome = UNKNOWN
    conn.execute("begin")
    jobs = [
        job
        for (job,) in conn.execute(
            "select * from pgqueue.enqueue_many(%s, %s, queue => 'held', key => %s, priority => 1)",
            [task, [Jsonb({"token": token, **each}) for each in args], key],
        )
    ]
    log.intends(token, [Intent(job, task, "held", key, 0.0) for job in jobs])
    try:
        conn.execute("commit")
        outcome = COMMITTED
    finally:
        log.learns(token, outcome, len(jobs))
    return jobs


def _roll_back(conn: psycopg.Connection) -> None:
    with suppress(psycopg.Error):
        conn.execute("rollback")


def _executing(conn: psycopg.Connection, jobs: list[int]) -> list[tuple[int, int]]:
    """Those of the jobs that run by now, when most do or three seconds have passed; with their reservations."""
    found: list[tuple[int, int]] = []
    until = time.monotonic() + 3
    while len(found) < len(jobs) - 2 and time.monotonic() < until:
        time.sleep(0.05)
        found = conn.execute(
            "select id, reservation from pgqueue.jobs where id = any(%s) and state = 'executing' order by id", [jobs]
        ).fetchall()
    return found


def _park_behind(conn: psycopg.Connection, key: str) -> None:
    """An open claim that has blocked a job behind the executing one of its key. It is rolled back in the end."""
    args = Jsonb({"token": secrets.token_hex(6), "seconds": 0.1})
    conn.execute("select pgqueue.enqueue('lasting', %s, queue => 'held', key => %s, priority => 2)", [args, key])
    conn.execute("select pgqueue.reserve('chaos operator', 3, '{held}')")


def _run(conn: psycopg.Connection, statement: str, **names: str) -> None:
    parts = {name: sql.Identifier("pgqueue", each) for name, each in names.items()}
    conn.execute(sql.SQL(statement).format(**parts))  # type: ignore[arg-type]


# The ways to change a partition. One that moves its rows away returns where they are.


def _drop(conn: psycopg.Connection, name: str, parent: str, bounds: str) -> None:
    """An empty one: nobody may drop rows that are to be kept."""
    with conn.transaction():
        # The parent first, as inserts lock them.
        _run(conn, "lock table {parent} in access exclusive mode", parent=parent)
        [row] = conn.execute(sql.SQL("select exists (select from {})").format(sql.Identifier("pgqueue", name)))
        if not row[0]:
            _run(conn, "drop table {name}", name=name)


def _detach(conn: psycopg.Connection, name: str, parent: str, bounds: str) -> None:
    _run(conn, "alter table {parent} detach partition {name}", parent=parent, name=name)


def _replace(conn: psycopg.Connection, name: str, parent: str, bounds: str) -> None:
    """Another table of another name takes the rows, and its place."""
    other = f"by_hand_{secrets.token_hex(3)}"
    with conn.transaction():
        _run(conn, "alter table {parent} detach partition {name}", parent=parent, name=name)
        _run(conn, "create table {other} partition of {parent} " + bounds, parent=parent, other=other)
        _run(conn, "insert into {other} select * from {name}", other=other, name=name)
        _run(conn, "drop table {name}", name=name)


def _move_away(conn: psycopg.Connection, name: str, parent: str, bounds: str) -> str:
    """Detach it and give it another name."""
    other = f"moved_{secrets.token_hex(3)}"
    with conn.transaction():
        _run(conn, "alter table {parent} detach partition {name}", parent=parent, name=name)
        rename = sql.SQL("alter table {} rename to {}")
        conn.execute(rename.format(sql.Identifier("pgqueue", name), sql.Identifier(other)))
    return other


def _put_another_there(conn: psycopg.Connection, name: str, parent: str, bounds: str) -> str:
    """Another table, with other columns, has its name for a while."""
    with conn.transaction():
        other = _move_away(conn, name, parent, bounds)
        _run(conn, "create table {name} (something text)", name=name)
    return other


def _put_back(scene: Scene, moved: str) -> None:
    """The rows go where their kind goes now, and what had the name goes away."""
    until = time.monotonic() + 20
    while True:
        try:
            with scene.control() as conn, conn.transaction():
                conn.execute("set local lock_timeout = '2s'")
                for (name,) in conn.execute(_OTHERS.encode()).fetchall():
                    _run(conn, "drop table {name}", name=name)
                # What the rows need, no completion may have missed.
                conn.execute("select from pgqueue._attach_partitions(14, 26, 1000)")
                _run(conn, "insert into {history} select * from {moved}", history="history", moved=moved)
                _run(conn, "drop table {moved}", moved=moved)
            return
        except (psycopg.errors.CheckViolation, psycopg.OperationalError) as error:
            # No partition takes them yet, or one is locked.
            if time.monotonic() > until:
                raise AssertionError(f"the rows of {moved} cannot be put back: {error}") from error
        time.sleep(0.1)


_OTHERS = """
select c.relname
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attname = 'something'
where c.relnamespace = 'pgqueue'::regnamespace
"""
