"""pgqueue, as documented: `with_pgqueue.py DSN produce|work N [tuned]`. See program.py for what it reads and prints."""

import asyncio
import itertools
import json
import sys
import time

import psycopg

from pgqueue import App, Worker, WorkerConfig, migrate


def mark(number: int) -> None:
    sys.stdout.write(f"@ {number} {time.monotonic_ns()}\n")
    sys.stdout.flush()


def produce(dsn: str) -> None:
    if "again" not in sys.argv:
        migrate(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        mark(0)
        for line in sys.stdin:
            count, pause, begin = line.split()
            jobs, every, first = int(count), float(pause), int(begin)
            if every:
                began = time.monotonic()
                for n in range(first, first + jobs):
                    time.sleep(max(0.0, began + (n - first) * every / 1000 - time.monotonic()))
                    connection.execute("select pgqueue.enqueue('noop', %s::jsonb)", (json.dumps({"n": n}),))
                    mark(n)
            else:
                for start in range(0, jobs, 1000):
                    many = [json.dumps({"n": n}) for n in range(start, min(start + 1000, jobs))]
                    connection.execute("select count(*) from pgqueue.enqueue_many('noop', %s::jsonb[])", (many,))
                mark(jobs)


async def work(dsn: str, jobs: int, *, keeps_history: bool) -> None:
    app, started = App(), itertools.count(1)
    if not keeps_history:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("update pgqueue.settings set retention_succeeded = '0'")

    @app.task
    async def noop(n: int) -> None:
        if not jobs or next(started) in (1, jobs):
            mark(n)

    worker = Worker(app, dsn, WorkerConfig(concurrency=10))
    worker.handle_signals()
    await worker.run()


if __name__ == "__main__":
    if sys.argv[2] == "produce":
        produce(sys.argv[1])
    else:
        asyncio.run(work(sys.argv[1], int(sys.argv[3]), keeps_history=sys.argv[4:] != ["tuned"]))
