"""Revision 0003 keeps what the earlier ones hold, and goes back with what it can."""

from __future__ import annotations

from pgqueue.schema.migrate import migrate
from tests.calls import call, enqueue, job, reserve_one
from tests.databases import Database


def test_tasks_and_jobs_survive_the_way_up_and_down(empty_database: Database) -> None:
    migrate(empty_database.dsn, to="0001")
    conn = empty_database.connect()
    conn.execute("insert into pgqueue.queues (name) values ('q')")
    conn.execute(
        "insert into pgqueue.tasks (name, retry_policy, declared_retry_policy) values ('t', 'fixed', 'exponential')"
    )
    conn.execute(
        "insert into pgqueue.jobs (run_at, ready_at, created_at, priority, queue, task, args)"
        " select now(), now(), now(), 0, 'default', 't', '{}'"
    )
    migrate(empty_database.dsn)
    held = reserve_one(conn)
    assert call(conn, "fail", held.id, held.reservation) == "failed"
    assert job(conn, held.id).retry is None

    conn.execute("update pgqueue.queues set retry_budget = 1")
    call(conn, "declare_task", "t", retry_policy="sidekiq")
    call(conn, "declare_task", "u", retry_policy="list", retry_delays=["1 s"])
    own = enqueue(conn, retry_policy="doubling")
    migrate(empty_database.dsn, to="0001")
    rows = conn.execute("select name, retry_policy, declared_retry_policy from pgqueue.tasks order by name").fetchall()
    assert rows == [("t", "fixed", None), ("u", None, None)]

    migrate(empty_database.dsn)
    assert [job(conn, job_id).state for job_id in (held.id, own)] == ["failed", "waiting"]
