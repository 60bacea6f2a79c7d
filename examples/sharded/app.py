"""What the example's workers run: each notes the database that it was in."""

from __future__ import annotations

from pgqueue import App, Job

app = App()


@app.task
def pay(job: Job, order: int) -> None:
    """Charge an order; those of one customer one after the other."""
    with job.transaction() as connection:
        connection.execute(
            "insert into paid (job_id, customer, paid_order) values (%s, %s, %s)", [job.id, job.key, order]
        )


@app.task
def remind() -> None:
    """A job without a key: any shard will do."""
