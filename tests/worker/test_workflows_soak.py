"""Workers are killed all the time while graphs, groups, steps and events go through them.

What must hold: no child starts before its parents ended as run_if says, no job waits for ever, a group ends when all
its members have ended, a completed step is not done again, each waiter gets its event.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, column, enqueue, maintain, value
from tests.databases import Database
from tests.facts import wait_until
from tests.workers import WorkerProcess, write_module

TASKS = """
import asyncio, os, random
import psycopg
from pgqueue import App, Job

app = App()
often = dict(max_attempts=10000, max_crashes=1000, retry_policy="fixed", retry_delay="0.1 s")

@app.task(**often)
async def work(job: Job) -> None:
    await asyncio.sleep(random.random() * 0.02)

@app.task(max_attempts=1)
async def fails(job: Job) -> None:
    raise ValueError

@app.task(**often)
def member(job: Job, depth: int) -> None:
    if depth:
        with job.transaction() as connection:
            for _ in range(2):
                member.using(group_id=job.id).enqueue(connection, depth - 1)

def effect(connection, job, name):
    connection.execute("insert into effects values (%s, %s)", [job.id, name])

@app.task(**often)
def story(job: Job) -> None:
    for number in range(3):
        def done(number=number):
            with psycopg.connect(os.environ["PGQUEUE_DSN"]) as own:
                own.execute("insert into calls values (%s, %s)", [job.id, number])
            return number
        assert job.step(f"step {number}", done) == number
        # The step is stored: after this a repetition would be a second run.
        with psycopg.connect(os.environ["PGQUEUE_DSN"]) as own:
            own.execute("insert into stands values (%s, %s)", [job.id, number])
    job.sleep("nap", "0.2 s")
    payload = job.wait_event(f"event {job.id}", timeout="10 min")
    assert payload == job.id
"""

SECONDS = 25

EARLY = """
select c.id
from pgqueue.history c
cross join lateral unnest(c.depends_on) p (id)
left join pgqueue.history h on h.id = p.id
where c.reserved_at is not null
    and (h.id is null or c.reserved_at < h.finished_at and c.run_if <> 'failed')
"""

WRONG = """
select c.id
from pgqueue.history c
where c.depends_on is not null
    and (c.reserved_at is not null) <> case c.run_if
        when 'finished' then true
        when 'failed' then exists (
            select from pgqueue.history h where h.id = any (c.depends_on) and h.state <> 'succeeded')
        else not exists (
            select from pgqueue.history h where h.id = any (c.depends_on) and h.state <> 'succeeded')
    end
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_workflows_outlive_their_workers(database: Database, conn: psycopg.Connection, tmp_path: Path) -> None:
    chosen = random.Random(7)
    write_module(tmp_path, TASKS)
    conn.execute("create table calls (job bigint, step int, at timestamptz default clock_timestamp())")
    conn.execute("create table stands (job bigint, step int, at timestamptz default clock_timestamp())")

    def start() -> WorkerProcess:
        return WorkerProcess(tmp_path, database.dsn, "-r", "jobs:app", "--lease", "2", "--concurrency", "8")

    workers = [start().started() for _ in range(2)]
    groups: list[int] = []
    stories: list[int] = []
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        jobs: list[int] = []
        for _ in range(chosen.randint(3, 12)):
            parents = chosen.sample(jobs, min(len(jobs), chosen.randint(0, 3)))
            options = (
                {"depends_on": parents, "run_if": chosen.choice(["succeeded", "finished", "failed"])} if parents else {}
            )
            jobs.append(enqueue(conn, "fails" if chosen.random() < 0.1 else "work", **options))
        group = call(conn, "open_group", "soak")
        for _ in range(3):
            enqueue(conn, "member", {"depth": 2}, group_id=group)
        call(conn, "close_group", group)
        groups.append(group)
        stories.append(enqueue(conn, "story"))
        for story in chosen.sample(stories, min(3, len(stories))):
            call(conn, "emit_event", f"event {story}", Jsonb(story))
        if chosen.random() < 0.3:
            victim = chosen.randrange(2)
            workers[victim].send(signal.SIGKILL)
            workers[victim].wait()
            workers[victim] = start()
        time.sleep(0.3)
    for story in stories:
        call(conn, "emit_event", f"event {story}", Jsonb(story))
    deadline = time.monotonic() + 120
    while value(conn, "select count(*) from pgqueue.jobs") and time.monotonic() < deadline:
        time.sleep(0.5)
    for worker in workers:
        worker.kill()

    def no_note_is_left() -> bool:
        # Some are to be read in half a second only.
        maintain(conn)
        return bool(value(conn, "select count(*) = 0 from pgqueue.notes"))

    wait_until(no_note_is_left)
    left = conn.execute("select id, task, state, blocked_on from pgqueue.jobs order by id limit 20").fetchall()
    assert left == []
    assert value(conn, "select max(unblocked) from pgqueue.maintenance_runs") == 0
    assert [row[0] for row in conn.execute(EARLY)] == []
    assert [row[0] for row in conn.execute(WRONG)] == []
    # 3 members, each with 2, each with 2.
    assert {each["succeeded"] for each in column_of_results(conn, groups)} == {21}
    assert value(conn, "select count(*) from calls c join stands s using (job, step) where c.at > s.at") == 0
    assert value(conn, "select count(distinct (job, step)) from stands") == 3 * len(stories)
    assert column(conn, "members", groups[0]) != []


def column_of_results(conn: psycopg.Connection, groups: list[int]) -> list[dict[str, int]]:
    rows = conn.execute("select result from pgqueue.history where id = any(%s)", [groups]).fetchall()
    assert len(rows) == len(groups)
    return [row[0] for row in rows]
