"""What does enqueue cost beside the plain INSERT or COPY that it ends in?

Single enqueues from 32 pgbench clients, real commits, while a worker is busy; `enqueue_many` by the thousand against
INSERT ... SELECT; and a load by COPY against a plain COPY into the table. Each against its baseline in the same round.
The first enqueue of a session reads and plans the functions on its way: beside it, the first INSERT of one into a plain
table.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import make_conninfo

from .harness import Bound, Connection, Report, Server, fill, median, paired, pgbench, pgbench_program, rounds

_CLIENTS = 32
_SECONDS = 3
_ROUNDS = rounds()
_BACKLOG = 100_000
_BULK = 1_000
_STATEMENTS = 40
_COPIED = 50_000
_SESSIONS = 15

_INSERT = """
insert into pgqueue.jobs (
    queue, task, args, headers, tags, priority, run_at, ready_at, created_at, expires_at, max_attempts, retention
)
values (
    'default', 'noop', '{"n": 1}', null, null, 0, clock_timestamp(), clock_timestamp(), clock_timestamp(),
    null, null, null
)
returning id;
"""
_PLAIN = """insert into plain (args) values ('{"n": 1}') returning id"""
_ENQUEUE = """select pgqueue.enqueue('noop', '{"n": 1}');"""
_WORK = """
select coalesce(array_agg(id), '{}') as ids, coalesce(array_agg(reservation), '{}') as reservations
from pgqueue.reserve('busy', 100) \\gset
select count(*) from pgqueue.complete_many(:ids::bigint[], :reservations::bigint[]);
"""

_MANY_INSERTED = """
with added as (
    insert into pgqueue.jobs (queue, task, args, priority, run_at, ready_at, created_at)
    select 'default', 'noop', a.args, 0, clock_timestamp(), clock_timestamp(), clock_timestamp()
    from unnest(array_fill('{"n": 1}'::jsonb, array[%s])) with ordinality a (args, ord)
    order by a.ord
    returning id
)
select count(*) from added
"""
_MANY_ENQUEUED = "select count(*) from pgqueue.enqueue_many('noop', array_fill('{\"n\": 1}'::jsonb, array[%s]))"

_ARGS = '{{"to": "someone@example.com", "subject": "A subject of a mail", "template": "welcome", "number": {n}}}'
_NOW = "2026-01-01 12:00:00.123456+00"

_INSERTS, _AWAKE, _ASLEEP = "INSERT, a worker busy", "enqueue, a worker busy", "enqueue, and another worker asleep"
_QUIET = "enqueue, and another worker asleep, notify = off"
_FIRST_INSERT, _FIRST = "the first INSERT of a session, into a plain table", "the first enqueue of a session"
_SELECTS, _MANY = f"INSERT ... SELECT of {_BULK:,}", f"enqueue_many of {_BULK:,}"
_COPIES, _STAGED = f"COPY of {_COPIED:,} into jobs", f"stage, COPY of {_COPIED:,}, enqueue_staged"

# Each way, the one that it is measured against, and the shares of that one's speed that it must have and is to have.
_AGAINST = {
    _AWAKE: (_INSERTS, 0.62, 0.7),
    _ASLEEP: (_QUIET, 0.5, 0.95),
    _FIRST: (_FIRST_INSERT, 0.2, 0.33),
    _MANY: (_SELECTS, 0.6, None),
    _STAGED: (_COPIES, 0.8, None),
}


def run(server: Server) -> Report:
    ways: dict[str, Callable[[str], float]] = {
        _INSERTS: lambda dsn: _single(dsn, _INSERT),
        _AWAKE: lambda dsn: _single(dsn, _ENQUEUE),
        _ASLEEP: lambda dsn: _single(dsn, _ENQUEUE, asleep=True),
        _QUIET: lambda dsn: _single(make_conninfo(dsn, options="-c pgqueue.notify=off"), _ENQUEUE, asleep=True),
        _FIRST_INSERT: lambda dsn: _first(dsn, _PLAIN),
        _FIRST: lambda dsn: _first(dsn, _ENQUEUE),
        _SELECTS: lambda dsn: _many(dsn, _MANY_INSERTED),
        _MANY: lambda dsn: _many(dsn, _MANY_ENQUEUED),
        _COPIES: _copy,
        _STAGED: _staged,
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(_ROUNDS):
        for way, measure in ways.items():
            with server.database("enqueue") as dsn:
                rates[way].append(measure(dsn))
    shares = {way: paired(rates[way], rates[baseline]) for way, (baseline, _, _) in _AGAINST.items()}
    return Report(
        f"enqueue_cost: jobs a second, median of {_ROUNDS}; single ones from {_CLIENTS} clients",
        ("", "per second", "all runs", "of its baseline"),
        [
            (
                way,
                f"{median(each):,.0f}",
                " ".join(f"{rate:,.0f}" for rate in each),
                f"{shares[way]:.2f}" if way in shares else "",
            )
            for way, each in rates.items()
        ],
        {way: {"per_s": median(each), "of_baseline": shares.get(way)} for way, each in rates.items()},
        [
            # Commits with a NOTIFY wait for each other, by the time that the disk takes.
            Bound(
                f"time of: {way}; in times of: {baseline}",
                1 / shares[way],
                round(1 / share, 2),
                is_ratio=way != _ASLEEP,
                aim=None if aim is None else round(1 / aim, 2),
            )
            for way, (baseline, share, aim) in _AGAINST.items()
        ],
    )


def _single(dsn: str, script: str, *, asleep: bool = False) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        # The lane is known from here on, as it is to all but a queue's first job.
        fill(connection, _BACKLOG)
        if asleep:
            connection.execute("select pgqueue.idle('sleeper', null, '1 hour')")
    with _busy_worker(dsn):
        return pgbench(dsn, script, f"--client={_CLIENTS}", "--jobs=2", f"--time={_SECONDS}", "--protocol=prepared")


def _first(dsn: str, statement: str) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "create table if not exists plain (id bigint generated always as identity primary key, args jsonb)"
        )
    times = []
    for _ in range(_SESSIONS):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("select 1")
            started = time.perf_counter()
            connection.execute(statement.encode())
            times.append(time.perf_counter() - started)
    return 1 / median(times)


@contextmanager
def _busy_worker(dsn: str) -> Iterator[None]:
    with pgbench_program(dsn, _WORK, "--client=1", "--time=600", "--protocol=prepared") as command:
        worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
            if worker.poll() is not None:
                raise RuntimeError("the busy worker has ended")
        finally:
            worker.kill()
            worker.wait()


def _many(dsn: str, statement: str) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pgqueue.enqueue('noop')")
        started = time.perf_counter()
        for _ in range(_STATEMENTS):
            connection.execute(statement.replace("%s", str(_BULK)))
        return _STATEMENTS * _BULK / (time.perf_counter() - started)


def _copy(dsn: str) -> float:
    lines = "".join(
        f"default\tsend_email\t{_ARGS.format(n=n)}\t0\t{_NOW}\t{_NOW}\t{_NOW}\n" for n in range(_COPIED)
    ).encode()
    with psycopg.connect(dsn) as connection:
        started = time.perf_counter()
        _send(connection, "pgqueue.jobs (queue, task, args, priority, run_at, ready_at, created_at)", lines)
        connection.commit()
        return _COPIED / (time.perf_counter() - started)


def _staged(dsn: str) -> float:
    lines = "".join(f"send_email\t{_ARGS.format(n=n)}\n" for n in range(_COPIED)).encode()
    with psycopg.connect(dsn) as connection:
        started = time.perf_counter()
        connection.execute("select pgqueue.stage()")
        _send(connection, "pgqueue_staged (task, args)", lines)
        connection.execute("select * from pgqueue.enqueue_staged()")
        connection.commit()
        return _COPIED / (time.perf_counter() - started)


def _send(connection: Connection, target: str, lines: bytes) -> None:
    with connection.cursor().copy(f"copy {target} from stdin".encode()) as copy:
        copy.write(lines)
