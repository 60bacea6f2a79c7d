"""A no-op task, for workers started by `pgqueue worker -r benchmarks.noops`."""

from __future__ import annotations

from pgqueue import App, Job

app = App()


@app.task
async def noop() -> None:
    pass


@app.task
async def write(job: Job) -> None:
    """Write one row in the transaction that completes the job: see benchmarks.transaction."""
    async with job.transaction() as connection:
        await connection.execute("insert into written values (%s)", [job.id])
