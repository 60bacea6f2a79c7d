"""Records what happens while faults happen, and passes it to the checker.

Triggers write the ledger of all reservations, in the queue's own transactions. Handlers and producers write what they
ran and committed to files, a line at a time with no buffer, so that the files outlive a SIGKILL. When all has ended the
files are copied into tables. The checker reads everything sorted by the server, so its memory does not grow with the
jobs.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from pgqueue.errors import EventTimeout
from tests.chaos import workflow_recorder
from tests.chaos.checker import (
    COMMITTED,
    UNKNOWN,
    Birth,
    Effect,
    End,
    Entry,
    Evidence,
    Extension,
    Limit,
    Live,
    Promise,
    Run,
    Still,
    Turn,
)

SCHEMA = """
create schema chaos;

-- n is the order: clocks may step, and sequences never go back behind what is committed.
create table chaos.ledger (
    n bigint generated always as identity,
    what "char" not null, job bigint not null, reservation bigint not null, leader bigint,
    at timestamptz not null default clock_timestamp(), asked_at timestamptz not null default statement_timestamp(),
    clock timestamptz, was_executing boolean not null,
    lease_until timestamptz, counted_lost boolean not null default false, handed boolean not null default false,
    queue text collate "C" not null, key text collate "C", task text not null, limit_key text
);

create table chaos.effects (
    n bigint generated always as identity,
    job bigint not null, reservation bigint not null, turn bigint, queue text collate "C", key text collate "C",
    at timestamptz not null default clock_timestamp()
);
create index on chaos.effects (queue, key, turn);

-- What extend has reported as held, committed with what it did.
create table chaos.extensions (
    job bigint not null, reservation bigint not null, until timestamptz not null,
    clock timestamptz not null, at timestamptz not null default clock_timestamp(),
    asked_at timestamptz not null default statement_timestamp()
);

-- Not logged: written when all is over.
create unlogged table chaos.promises (
    job bigint, outcome text, at double precision, kind text, token text, delay double precision,
    queue text collate "C", key text collate "C"
);
create unlogged table chaos.runs (
    job bigint, reservation bigint, started_at double precision, ended_at double precision, how text
);

create function chaos.note_update() returns trigger language plpgsql as $$
begin
    if old.state = 'executing' then
        insert into chaos.ledger (
            what, job, reservation, leader, clock, was_executing, queue, key, task, limit_key, lease_until, counted_lost
        )
        values (
            'l', old.id, old.reservation, old.leader, pgqueue._clock(), true,
            old.queue, old.key, old.task, old.limit_key,
            old.lease_expires_at,
            -- Else a worker, or the supervisor, gives back what a process held that is dead.
            new.losses > old.losses and current_query() !~ 'pgqueue[.](release_unheld|crashed)[(]'
        );
    end if;
    if new.state = 'executing' then
        insert into chaos.ledger (
            what, job, reservation, leader, clock, was_executing, queue, key, task, limit_key, lease_until, handed
        )
        values (
            'h', new.id, new.reservation, new.leader, new.reserved_at, true,
            new.queue, new.key, new.task, new.limit_key,
            new.lease_expires_at, lower(current_query()) = 'commit'
        );
    end if;
    return null;
end
$$;
create function chaos.note_delete() returns trigger language plpgsql as $$
begin
    insert into chaos.ledger (what, job, reservation, leader, was_executing, queue, key, task, limit_key)
    values (
        'g', old.id, old.reservation, old.leader, old.state = 'executing', old.queue, old.key, old.task, old.limit_key
    );
    return null;
end
$$;
create trigger chaos_update after update on pgqueue.jobs for each row
when (
    (old.state = 'executing' or new.state = 'executing')
    and (old.state, old.reservation) is distinct from (new.state, new.reservation)
)
execute function chaos.note_update();
create trigger chaos_delete after delete on pgqueue.jobs for each row execute function chaos.note_delete();

-- extend reports to its client what it reports here, whatever its arguments are.
alter function pgqueue.extend set schema chaos;
do $do$
declare
    v_extend oid := 'chaos.extend'::regproc;
begin
    execute format(
        $f$
        create function pgqueue.extend(%s) returns %s language plpgsql volatile security definer as $$
        begin
            return query
            with held as materialized (
                select * from chaos.extend(%s)
            ), recorded as (
                insert into chaos.extensions (job, reservation, until, clock)
                select h.job_id, w.reservation, h.lease_expires_at, pgqueue._clock()
                from held h
                join unnest(extend.job_ids, extend.reservations) w (id, reservation) on w.id = h.job_id
                where h.lease_expires_at is not null
            )
            select * from held;
        end
        $$
        $f$,
        pg_get_function_arguments(v_extend),
        pg_get_function_result(v_extend),
        (select string_agg(format('extend.%I', p.name), ', ' order by p.n)
            from pg_proc f, unnest(f.proargnames) with ordinality p (name, n)
            where f.oid = v_extend and p.n <= f.pronargs)
    );
end
$do$;

grant usage on schema chaos to public;
grant select, insert on chaos.effects to public;
"""

# Numbered by what is there: two handlers of one key at a time would give the same number.
EFFECT = """
insert into chaos.effects (job, reservation, queue, key, turn)
select %(job)s, %(reservation)s, %(queue)s, %(key)s,
    case when %(key)s::text is not null then (
        select coalesce(max(e.turn), 0) + 1 from chaos.effects e where e.queue = %(queue)s and e.key = %(key)s
    ) end
"""


class Witness:
    """The file of one process, in which handlers record what they run."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @classmethod
    def of_this_process(cls, directory: str | os.PathLike[str]) -> Witness:
        return cls(Path(directory) / f"{os.getpid()}-{secrets.token_hex(4)}.runs")

    def ran(self, job: int, reservation: int) -> None:
        """It ran, and took no time."""
        now = _now()
        self._write(f"x {job} {reservation} {now:.6f}\n")

    def failed(self, job: int, reservation: int) -> None:
        """Its handler is over, and has not done it."""
        self._write(f"f {job} {reservation} {_now():.6f}\n")

    @contextmanager
    def running(self, job: int, reservation: int) -> Iterator[None]:
        self.starts(job, reservation)
        try:
            yield
        except BaseException:
            self.failed(job, reservation)
            raise
        # The transaction of a job has been committed by now: its end in the ledger may be before this.
        self._write(f"e {job} {reservation} {_now():.6f}\n")

    def starts(self, job: int, reservation: int) -> None:
        self._write(f"s {job} {reservation} {_now():.6f}\n")

    def done(self, job: int, reservation: int) -> None:
        """Nothing is left to do but to complete it."""
        self._write(f"d {job} {reservation} {_now():.6f}\n")

    @contextmanager
    def leaving(self, job: int, reservation: int) -> Iterator[None]:
        """Around what may give the job back: if it does, the handler had nothing left to do before it.

        No error but a timeout of an event says that it has not: the reply may be lost, or the handler be cancelled
        while it waits for it, after the server has committed. None of our handlers goes on after one of those.
        """
        self._write(f"l {job} {reservation} {_now():.6f}\n")
        try:
            yield
        except EventTimeout:
            self._write(f"b {job} {reservation} {_now():.6f}\n")
            raise
        self._write(f"b {job} {reservation} {_now():.6f}\n")

    def _write(self, line: str) -> None:
        os.write(self._file, line.encode())


class ProducerLog:
    """The log of one producer: a line before each commit, and one after its answer."""

    def __init__(self, directory: Path) -> None:
        path = directory / f"{secrets.token_hex(4)}.promises"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.committed = 0

    def intends(self, token: str, jobs: Sequence[Intent]) -> None:
        lines = (f"i {token} {each.job} {each.kind} {each.delay} {each.queue} {each.key or '-'}\n" for each in jobs)
        os.write(self._file, "".join(lines).encode())

    def learns(self, token: str, outcome: str, count: int) -> None:
        os.write(self._file, f"o {token} {_now():.6f} {outcome}\n".encode())
        if outcome == COMMITTED:
            self.committed += count


class Intent(NamedTuple):
    """A job about to be committed."""

    job: int
    kind: str
    queue: str
    key: str | None
    delay: float


def _now() -> float:
    # Not time.time(): that one is made to lie.
    return time.clock_gettime(time.CLOCK_REALTIME)


class Records:
    """The records of one run, in a directory and in a database."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self.directory = directory
        self._dsn = dsn
        self.losses: list[tuple[float, float]] = []
        # When history was not whole.
        self.away: list[tuple[float, float]] = []
        # What was paused, by kind and target, from when to when.
        self.still: list[tuple[str, str, float, float]] = []
        directory.mkdir(parents=True, exist_ok=True)

    def prepare(self) -> None:
        """Make the tables and triggers in a database in which the migrations have run."""
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            conn.execute(SCHEMA.encode())
            conn.execute(workflow_recorder.SCHEMA.encode())

    def load(self) -> None:
        """Copy the files into the database."""
        with psycopg.connect(self._dsn) as conn:
            conn.execute("truncate chaos.promises, chaos.runs")
            with conn.cursor() as cursor, cursor.copy("copy chaos.promises from stdin") as copy:
                for path in self.directory.glob("*.promises"):
                    for promise in _promises(path):
                        copy.write_row(promise)
            with conn.cursor() as cursor, cursor.copy("copy chaos.runs from stdin") as copy:
                for path in self.directory.glob("*.runs"):
                    for run in _runs(path):
                        copy.write_row(run)
            workflow_recorder.load(conn, self.directory)
            for table in (
                "promises",
                "runs",
                "ledger",
                "effects",
                "extensions",
                "completed",
                *workflow_recorder.TABLES,
            ):
                conn.execute(f"analyze chaos.{table}".encode())
            conn.execute("analyze pgqueue.jobs")
            conn.execute("analyze pgqueue.history")

    @contextmanager
    def evidence(self, **known: Any) -> Iterator[Evidence]:
        """Read everything for the checker, in one snapshot."""
        with psycopg.connect(self._dsn) as conn:
            conn.execute("set transaction isolation level repeatable read")
            conn.execute("set local work_mem = '256MB'")
            conn.execute("set local enable_nestloop = off")
            # Each cursor is read to its end.
            conn.execute("set local cursor_tuple_fraction = 1")
            reader = _Reader(conn)
            [(unblocked, found, hidden)] = conn.execute(_NETS.encode()).fetchall()
            yield Evidence(
                promises=reader.read(Promise, _PROMISES),
                ledger=reader.read(Entry, f"{_LEDGER} order by job, n"),
                runs=reader.read(Run, _RUNS),
                effects=reader.read(Effect, _EFFECTS),
                ends=reader.read(End, _ENDS),
                live=reader.read(Live, _LIVE),
                births=reader.read(Birth, _BIRTHS),
                extensions=reader.read(Extension, _EXTENSIONS),
                keyed=reader.read(Entry, f"{_LEDGER} where key is not null order by queue, key, n"),
                turns=reader.read(Turn, _TURNS),
                limits=list(_limits(conn, reader)),
                still=list(_still(self.still, reader)),
                losses=tuple(self.losses),
                unblocked=unblocked,
                hidden=hidden,
                found_lanes=found,
                workflows=workflow_recorder.read(conn, reader, tuple(self.away)),
                **known,
            )


# What the nets had to catch. (A schema without heads of lanes has none of theirs.)
_NETS = """
select
    coalesce(max(h.unblocked), 0),
    coalesce(max(h.found_lanes), 0),
    coalesce(max((to_jsonb(h) ->> 'hidden')::bigint), 0)
from pgqueue.maintenance_runs h
"""
_LEDGER = """
select job, n, what::text, reservation, extract(epoch from at)::float8, extract(epoch from asked_at)::float8,
    extract(epoch from coalesce(clock, at))::float8, queue, key, leader, was_executing,
    extract(epoch from lease_until)::float8, counted_lost
from chaos.ledger
"""
_EXTENSIONS = """
select job, reservation, extract(epoch from until)::float8, extract(epoch from clock)::float8,
    extract(epoch from at)::float8, extract(epoch from asked_at)::float8
from chaos.extensions
order by job, at
"""
_PROMISES = "select job, outcome, at, kind, token from chaos.promises order by job"
_RUNS = "select job, reservation, started_at, ended_at, how from chaos.runs order by job"
_EFFECTS = "select job, reservation, turn from chaos.effects order by job"
_ENDS = """
select id, reservation, state::text, coalesce(args ->> case when task = '@group' then 'name' else 'token' end, ''),
    merged_into is not null
from pgqueue.history
order by id
"""
_LIVE = """
select j.id,
    concat_ws(
        ' ', 'a', j.task, 'of', j.queue, 'is', j.state, 'behind ' || j.blocked_on, 'key ' || j.key,
        'attempts', j.attempts, 'due', j.ready_at, 'at', pgqueue._clock(), 'held by ' || j.reserved_by,
        'until ' || j.lease_expires_at
    ),
    coalesce(j.args ->> case when j.task = '@group' then 'name' else 'token' end, ''), e.at
from pgqueue.jobs j
left join (
    select x.name, min(x.at) as at
    from chaos.emitted x
    where not exists (select from chaos.emissions y where y.name = x.name)
    group by x.name
) e on e.name = j.args ->> 'event'
order by j.id
"""
_BIRTHS = f"""
select p.queue, p.key, p.job, case when p.outcome = '{COMMITTED}' then p.at end,
    extract(epoch from j.created_at)::float8 + p.delay
from chaos.promises p
join (
    -- Whoever depends on others has no place before it begins.
    select h.id, h.created_at, h.args ->> 'token' as token
    from pgqueue.history h
    where h.key is not null and h.depends_on is null
    union all
    select l.id, l.created_at, l.args ->> 'token' from pgqueue.jobs l where l.key is not null and l.depends_on is null
) j on j.id = p.job and j.token = p.token
where p.key is not null and p.outcome in ('{COMMITTED}', '{UNKNOWN}') and p.kind <> 'gathered'
order by p.queue, p.key, p.job
"""
_TURNS = "select queue, key, turn, job from chaos.effects where key is not null order by queue, key, turn, job"


class _Reader:
    def __init__(self, conn: psycopg.Connection) -> None:
        self._conn = conn
        self._count = 0

    def read(self, shape: Any, query: str, params: Sequence[object] = ()) -> Iterator[Any]:
        self._count += 1
        # Not opened before it is read: there are many.
        with self._conn.cursor(f"stream_{self._count}") as cursor:
            cursor.itersize = 20_000
            cursor.execute(query.encode(), params or None)
            for row in cursor:
                yield shape._make(row)


def _limits(conn: psycopg.Connection, reader: _Reader) -> Iterator[Limit]:
    rows = conn.execute(
        "select l.kind, l.target, l.max_executing, l.rate, extract(epoch from l.per)::float8 from pgqueue.limits l"
    ).fetchall()
    for kind, target, max_executing, rate, per in rows:
        targets = [target]
        if target.endswith("*"):
            found = "select distinct limit_key from chaos.ledger where limit_key is not null order by 1"
            targets = [name for (name,) in conn.execute(found.encode()) if name.startswith(target[:-1])]
        column = {"task": "task", "queue": "queue", "limit_key": "limit_key"}[kind]
        for each in targets:
            query = f"{_LEDGER} where {column} = %s order by n"
            yield Limit(f"{kind} {each}", max_executing, rate, per or 0.0, reader.read(Entry, query, [each]))


def _still(paused: Sequence[tuple[str, str, float, float]], reader: _Reader) -> Iterator[Still]:
    for kind, target in sorted({(kind, target) for kind, target, _, _ in paused}):
        spans = [(began, ended) for *of, began, ended in paused if of == [kind, target]]
        of = f"starts_with({kind}, %s)" if target.endswith("*") else f"{kind} = %s"
        ledger = reader.read(Entry, f"{_LEDGER} where {of} order by n", [target.removesuffix("*")])
        yield Still(f"{kind} {target}", spans, ledger)


def _promises(path: Path) -> Iterator[tuple[object, ...]]:
    open_: dict[str, list[list[str]]] = {}
    with path.open() as file:
        for line in file:
            what, token, *rest = line.split()
            if what == "i":
                open_.setdefault(token, []).append(rest)
                continue
            at, outcome = float(rest[0]), " ".join(rest[1:])
            for job, kind, delay, queue, key in open_.pop(token, []):
                yield int(job), outcome, at, kind, token, float(delay), queue, None if key == "-" else key
    for token, intended in open_.items():
        for job, kind, delay, queue, key in intended:
            yield int(job), UNKNOWN, 0.0, kind, token, float(delay), queue, None if key == "-" else key


def _runs(path: Path) -> Iterator[tuple[object, ...]]:
    # A job may run twice at once in one process, under two reservations; never under one.
    started: dict[tuple[int, int], float] = {}
    done: dict[tuple[int, int], float] = {}
    left: dict[tuple[int, int], float] = {}
    with path.open() as file:
        for line in file:
            parts = line.split()
            if len(parts) != 4:
                # The last one of a process that was killed in the middle of it.
                continue
            what, pair, at = parts[0], (int(parts[1]), int(parts[2])), float(parts[3])
            if what == "x":
                yield *pair, at, at, "ok"
            elif what == "s":
                started[pair] = at
            elif what == "d":
                done[pair] = at
            elif what == "l":
                left[pair] = at
            elif what == "b":
                left.pop(pair, None)
            elif pair in started:
                # What it had to do was done before it completed the job.
                how = "ok" if what == "e" or pair in done else "failed"
                yield *pair, started.pop(pair), done.pop(pair, left.pop(pair, at)), how
    for pair, at in started.items():
        yield *pair, at, done.get(pair), "ok" if pair in done else ""
