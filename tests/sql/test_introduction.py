"""The statements by which sql/README.md introduces a claim and an end, run as they stand there."""

from __future__ import annotations

import re

import psycopg

from pgqueue.schema import bundled
from tests.calls import enqueue_many, state


def test_the_statement_of_a_claim_takes_ten_jobs_and_that_of_an_end_moves_one_to_history(
    conn: psycopg.Connection,
) -> None:
    page = (bundled.directory("sql") / "README.md").read_text()
    claim, end = re.findall(r"^```sql\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    enqueued = enqueue_many(conn, 20)

    claimed = conn.execute(claim).fetchall()
    assert sorted(row[0] for row in claimed) == enqueued[:10]

    job_id, reservation = claimed[0][0], claimed[0][-1]
    assert conn.execute(end.replace("j.id = 17", f"j.id = {job_id}")).fetchall() == []
    ended = end.replace("j.id = 17", f"j.id = {job_id}").replace("1048577", str(reservation))
    assert conn.execute(ended).fetchall() == [(job_id,)]
    assert state(conn, job_id) == "succeeded"
