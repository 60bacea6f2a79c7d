"""The queues that are compared: their versions, their settings, and the query that counts their undone jobs."""

from __future__ import annotations

from dataclasses import dataclass

# node is of npm too: both libraries need 22, which many a machine does not have.
NPM = ("node@22.23.3", "graphile-worker@0.18.0", "pg-boss@12.38.0")
# psycopg with its binary, as ours; asyncpg is what PgQueuer's README takes.
PYPI = (
    "pgqueuer==1.6.0",
    "asyncpg==0.32.0",
    "procrastinate==3.10.0",
    "psycopg[binary,pool]==3.3.9",
)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with its settings.

    `left` counts the jobs that are not done, of `n` that were enqueued. `times`: of the jobs of a drain, so that one
    takes seconds. `paced`: whether a worker keeps up with a job each 20 ms. `twice`: whether two processes drain, too.
    """

    name: str
    program: str
    settings: str
    left: str
    times: float = 1.0
    tuned: bool = False
    paced: bool = True
    twice: bool = False

    @property
    def is_ours(self) -> bool:
        return self.program == "with_pgqueue.py"

    @property
    def is_npm(self) -> bool:
        return self.program.endswith(".mjs")

    @property
    def version(self) -> str:
        """The pinned version, or "this one"."""
        for each in (*NPM, *PYPI):
            package, _, version = each.replace("==", "@").partition("@")
            if self.program.rpartition(".")[0] == f"with_{package.replace('-', '_')}":
                return version
        return "this one"


_GRAPHILE = "select count(*) from graphile_worker._private_jobs"
_PG_BOSS = "select %(n)s - count(*) from pgboss.job where name = 'noop' and state = 'completed'"

QUEUES = (
    Queue(
        "pgqueue",
        "with_pgqueue.py",
        "as it comes, concurrency 10",
        "select %(n)s - count(*) from pgqueue.history where state = 'succeeded'",
        times=10,
        twice=True,
    ),
    Queue(
        "pgqueue-no-history",
        "with_pgqueue.py",
        "the same with `retention_succeeded` zero, for most of the others keep no history",
        "select count(*) from pgqueue.jobs",
        times=10,
        tuned=True,
        paced=False,
    ),
    Queue("graphile-worker", "with_graphile_worker.mjs", "as it comes, `concurrentJobs` 10", _GRAPHILE),
    Queue(
        "graphile-worker-tuned",
        "with_graphile_worker.mjs",
        "as its page on performance: `concurrentJobs` 24, `maxPoolSize` 25, `localQueue.size` 500, batch delays 0",
        _GRAPHILE,
        times=10,
        tuned=True,
        twice=True,
    ),
    Queue(
        "pg-boss",
        "with_pg_boss.mjs",
        "as it comes, `localConcurrency` 10: each of ten takes one job every 2 s",
        _PG_BOSS,
        times=0.005,
        paced=False,
    ),
    Queue(
        "pg-boss-tuned",
        "with_pg_boss.mjs",
        "`batchSize` 100 (our choice; ten workers all wake for one job), `burstWhenBatchFull`, LISTEN and NOTIFY on",
        _PG_BOSS,
        times=2,
        tuned=True,
    ),
    Queue(
        "pgqueuer",
        "with_pgqueuer.py",
        "as `pgq run` runs it: uvloop, asyncpg, batches of 10, as many at once as it likes (it refuses 10)",
        "select %(n)s - count(*) from pgqueuer_log where status = 'successful'",
    ),
    Queue(
        "procrastinate",
        "with_procrastinate.py",
        "as it comes, concurrency 10",
        "select %(n)s - count(*) from procrastinate_jobs where status = 'succeeded'",
        times=0.25,
    ),
)
NAMES = tuple(queue.name for queue in QUEUES)
