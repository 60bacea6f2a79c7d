"""No-op tasks, for workers that are started as users start them: `pgqueue worker -r benchmarks.noops`."""

from __future__ import annotations

from pgqueue import App

app = App()


@app.task
async def noop() -> None:
    pass
