"""Many workers with buffers, hot keys, short leases, and sessions that are killed: each key keeps its order.

Every claim and every end writes a line in its own transaction, with the time at which the database held the
reservation: of a claim after it, of an end before it. A job that was once reserved holds its place until it has ended,
so between its first claim and its end no other job of its key may have been claimed, and jobs of a key must have been
claimed first in the order of their ids.
PGQUEUE_SOAK=100000 runs the long form.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from dataclasses import dataclass, field

import psycopg
import pytest

from tests.calls import maintain, value
from tests.databases import Database

JOBS = int(os.environ.get("PGQUEUE_SOAK", "1000"))
KEYS = 200
WORKERS = 20
BUFFER = 8
LEASE = "2 s"
LIMIT_S = max(90, JOBS / 50)

PREPARE = """
create table public.log (
    n bigint generated always as identity primary key, what text, job_id bigint, key text, at timestamptz
);
create index on public.log (job_id, what);
"""
CLAIM = """
with got as materialized (select r.* from pgqueue.reserve(%s, %s, lease => %s) r),
logged as (insert into public.log (what, job_id, key, at) select 'claim', g.id, g.key, clock_timestamp() from got g)
select g.id, g.reservation from got g
"""
END = """
insert into public.log (what, job_id, key, at)
select 'end', u.id, null, clock_timestamp() from unnest(%s::bigint[]) u (id)
"""


@dataclass
class Soak:
    database: Database
    stop: threading.Event = field(default_factory=threading.Event)
    pids: dict[str, int] = field(default_factory=dict)
    killed: int = 0
    errors: list[BaseException] = field(default_factory=list)

    def work(self, number: int) -> None:
        rng = random.Random(number)
        life = 0
        while not self.stop.is_set():
            life += 1
            # Half of them come back under their name and say so; the others' leases lapse.
            name = f"w{number}" if number % 2 else f"w{number}.{life}"
            try:
                with psycopg.connect(self.database.dsn, autocommit=True) as conn:
                    self.pids[str(number)] = conn.info.backend_pid
                    if number % 2:
                        conn.execute("select * from pgqueue.release_unheld(%s)", [name])
                    while not self.stop.is_set():
                        self.turn(conn, name, rng)
            except psycopg.OperationalError:
                continue
            except BaseException as error:
                self.errors.append(error)
                self.stop.set()

    def turn(self, conn: psycopg.Connection, name: str, rng: random.Random) -> None:
        held = conn.execute(CLAIM, [name, rng.randint(1, BUFFER), LEASE]).fetchall()
        if not held:
            self.stop.wait(0.005)
            return
        rng.shuffle(held)
        while held:
            some = [held.pop() for _ in range(min(len(held), rng.randint(1, 3)))]
            ids, reservations = [row[0] for row in some], [row[1] for row in some]
            if rng.random() < 0.8:
                with conn.transaction():
                    conn.execute(END, [ids])
                    lost = conn.execute("select * from pgqueue.complete_many(%s, %s)", [ids, reservations]).fetchall()
                    if lost:
                        gone = [row[0] for row in lost]
                        conn.execute(
                            "delete from public.log where what = 'end' and job_id = any (%s) and xmin::text::bigint"
                            " = (pg_current_xact_id()::text::bigint %% 4294967296)",
                            [gone],
                        )
            elif rng.random() < 0.3:
                conn.execute("select pgqueue.release(%s, %s)", [ids, reservations])
            else:
                for job_id, reservation in some:
                    if rng.random() < 0.5:
                        conn.execute("select pgqueue.fail(%s, %s, retry_in => '10 ms')", [job_id, reservation])
                    else:
                        conn.execute("select pgqueue.snooze(%s, %s, '5 ms')", [job_id, reservation])

    def keep_house(self) -> None:
        conn = self.database.connect()
        while not self.stop.wait(0.3):
            maintain(conn)

    def kill(self) -> None:
        conn = self.database.connect()
        rng = random.Random(0)
        while not self.stop.wait(0.15 if JOBS < 20_000 else 0.5):
            pids = list(self.pids.values())
            if pids and conn.execute("select pg_terminate_backend(%s)", [rng.choice(pids)]).fetchone() == (True,):
                self.killed += 1

    def produce(self, count: int) -> None:
        """From one session, so that the ids of a key become visible in their order."""
        conn = self.database.connect()
        rng = random.Random(1)
        chunk = 200
        for _ in range(0, count, chunk):
            # Some keys are hotter than others.
            keys = [f"k{int(KEYS * rng.random() ** 2)}" for _ in range(chunk)]
            conn.execute(
                "select pgqueue.enqueue('t', key => k, priority => n %% 3, max_attempts => 10000)"
                " from (select k, n::integer as n from unnest(%s::text[]) with ordinality u (k, n)) x",
                [keys],
            )


@pytest.mark.long
@pytest.mark.covers("L1", "L12", "L13", "G9")
@pytest.mark.timeout(LIMIT_S + 60)
def test_each_key_keeps_its_order_while_workers_are_killed(database: Database) -> None:
    conn = database.connect()
    conn.execute(PREPARE)
    soak = Soak(database)
    soak.produce(JOBS // 2)
    threads = [threading.Thread(target=soak.work, args=[n]) for n in range(WORKERS)]
    threads += [threading.Thread(target=soak.keep_house), threading.Thread(target=soak.kill)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    try:
        soak.produce(JOBS - JOBS // 2)
        while not soak.stop.is_set() and time.monotonic() < start + LIMIT_S:
            if not value(conn, "select exists (select from pgqueue.jobs)"):
                break
            soak.stop.wait(0.2)
    finally:
        soak.stop.set()
        for thread in threads:
            thread.join()
    took = time.monotonic() - start
    assert soak.errors == []
    assert value(conn, "select count(*) from pgqueue.jobs") == 0, f"not done after {took:.0f} s"

    claims = value(conn, "select count(*) from public.log where what = 'claim'")
    total = value(conn, "select count(*) from pgqueue.history where state = 'succeeded'")
    lapsed = value(conn, "select max(rescued) from pgqueue.maintenance_runs")
    sys.stdout.write(
        f"soak: {total:,} jobs of {KEYS} keys by {WORKERS} workers in {took:.0f} s, {claims:,} claims,"
        f" {soak.killed} sessions killed, {lapsed} leases lapsed\n"
    )
    assert total == value(conn, "select count(distinct job_id) from public.log where what = 'end'")
    violations = conn.execute(
        """
        with lives as (
            select c.job_id, min(c.key) as key, min(c.at) as claimed, max(c.at) as last_claimed,
                (select max(e.at) from public.log e where e.what = 'end' and e.job_id = c.job_id) as ended
            from public.log c where c.what = 'claim' group by c.job_id
        ),
        following as (
            select l.*, lag(l.ended) over w as before_ended, lag(l.job_id) over w as before
            from lives l window w as (partition by l.key order by l.job_id)
        )
        select * from following f where f.claimed < f.before_ended or f.ended < f.last_claimed
        """
    ).fetchall()
    assert violations == []
    assert value(conn, "select max(unblocked) from pgqueue.maintenance_runs") == 0
