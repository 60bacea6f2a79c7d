"""PgQueuer, as documented: `with_pgqueuer.py DSN produce|work N`. See program.py for what it reads and prints."""

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pgqueuer
import uvloop
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries

dsn = sys.argv[1]
started = itertools.count(1)
watched = int(sys.argv[3]) if sys.argv[2] == "work" else 0


def mark(number: int) -> None:
    sys.stdout.write(f"@ {number} {time.monotonic_ns()}\n")
    sys.stdout.flush()


async def produce() -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))
    if "again" not in sys.argv:
        await queries.install()
    mark(0)
    while line := await asyncio.to_thread(sys.stdin.readline):
        count, pause, begin = line.split()
        jobs, every, first = int(count), float(pause), int(begin)
        if every:
            began = time.monotonic()
            for n in range(first, first + jobs):
                await asyncio.sleep(max(0.0, began + (n - first) * every / 1000 - time.monotonic()))
                await queries.enqueue("noop", str(n).encode())
                mark(n)
        else:
            for start in range(0, jobs, 1000):
                many: list[bytes | None] = [str(n).encode() for n in range(start, min(start + 1000, jobs))]
                await queries.enqueue(["noop"] * len(many), many, [0] * len(many))
            mark(jobs)


@asynccontextmanager
async def consumer() -> AsyncIterator[PgQueuer]:
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))

    @pgq.entrypoint("noop")
    async def noop(job: Job) -> None:
        if not watched or next(started) in (1, watched):
            mark(int(job.payload or b""))

    yield pgq


if __name__ == "__main__":
    # What `pgq run` does, with the event loop that it takes.
    uvloop.run(produce() if sys.argv[2] == "produce" else pgqueuer.run(consumer))
