"""A no-op task, for workers started by `pgqueue worker -r benchmarks.noops`."""

from __future__ import annotations

from pgqueue import App

app = App()


@app.task
async def noop() -> None:
    pass
