"""procrastinate, as documented: `with_procrastinate.py DSN produce|work N`. See program.py for its input and output."""

import asyncio
import itertools
import sys
import time

from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=sys.argv[1]))
started = itertools.count(1)
watched = int(sys.argv[3]) if sys.argv[2] == "work" else 0


def mark(number: int) -> None:
    sys.stdout.write(f"@ {number} {time.monotonic_ns()}\n")
    sys.stdout.flush()


@app.task(name="noop")
async def noop(n: int) -> None:
    if not watched or next(started) in (1, watched):
        mark(n)


async def produce() -> None:
    async with app.open_async():
        if "again" not in sys.argv:
            await app.schema_manager.apply_schema_async()
        mark(0)
        while line := await asyncio.to_thread(sys.stdin.readline):
            count, pause, begin = line.split()
            jobs, every, first = int(count), float(pause), int(begin)
            if every:
                began = time.monotonic()
                for n in range(first, first + jobs):
                    await asyncio.sleep(max(0.0, began + (n - first) * every / 1000 - time.monotonic()))
                    await noop.defer_async(n=n)
                    mark(n)
            else:
                for start in range(0, jobs, 1000):
                    await noop.batch_defer_async(*({"n": n} for n in range(start, min(start + 1000, jobs))))
                mark(jobs)


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=10)


if __name__ == "__main__":
    asyncio.run(produce() if sys.argv[2] == "produce" else work())
