"""The docs describe exact numbers as samples count them."""

from __future__ import annotations

import psycopg

from pgqueue.testing import Clock
from tests.calls import enqueue_many, maintain, value
from tests.docs.pages import read


def words(page: str) -> str:
    return " ".join(read(page).split())


def test_the_bound_up_to_which_a_queue_is_counted_in_each_sample(conn: psycopg.Connection, clock: Clock) -> None:
    def is_counted() -> bool:
        clock.advance("11 s")
        maintain(conn)
        return not value(
            conn, "select is_large from pgqueue.samples where queue = 'mail' and span = 10 order by n desc limit 1"
        )

    enqueue_many(conn, 1000, queue="mail")
    assert is_counted()
    others = (
        "insert into pgqueue.samples (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead)"
        " select (select max(at) from pgqueue.samples), 10, 'other-' || n, 10000, 10000, 0, 0, 0, 0, 0"
        " from generate_series(1, %s) n"
    )
    # 990,000 jobs of others, as the last sample has them: the bound is 10,000.
    conn.execute(others.encode(), [99])
    assert is_counted()
    # Twenty million: 1,000 is the least.
    conn.execute(others.encode(), [2000])
    assert not is_counted()
    conn.execute("delete from pgqueue.jobs where id = (select max(id) from pgqueue.jobs)")
    conn.execute(others.encode(), [2000])
    assert is_counted()
    said, changes = words("docs/operate/web.md"), words("CHANGELOG.md")
    assert "A queue of up to 10,000 jobs is counted completely each time" in said
    assert "more than a million such jobs is the bound lower, 1,000 at least" in said
    assert (
        "up to 10,000 jobs is counted exactly in every sample, unless all queues together have more than a" in changes
    )
    assert "million such jobs: then one of up to 1,000 at least" in changes
    assert "30 queues and priorities" not in said
    assert "however many queues there are" not in changes
