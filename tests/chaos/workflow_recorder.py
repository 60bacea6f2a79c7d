"""Records steps, events and waits, and reads what workflow_checker.py checks."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.workflow_checker import Arrival, Await, Call, Edge, Group, Payment, Result, Workflows

SCHEMA = """
-- n is drawn from the ledger's sequence.
create table chaos.completed (
    n bigint not null default nextval('chaos.ledger_n_seq'), job bigint not null, name text collate "C" not null,
    result jsonb, asked_at timestamptz not null default statement_timestamp()
);
create table chaos.emissions (
    n bigint not null default nextval('chaos.ledger_n_seq'), name text collate "C" not null, payload jsonb
);
-- Written in the transaction in which the step is completed.
create table chaos.payments (job bigint not null, name text collate "C" not null);

create unlogged table chaos.calls (job bigint, reservation bigint, name text collate "C", at double precision);
create unlogged table chaos.results (
    job bigint, reservation bigint, name text collate "C", value jsonb, at double precision
);
create unlogged table chaos.awaits (job bigint, reservation bigint, awaited bigint, at double precision);
create unlogged table chaos.emitted (name text collate "C", at double precision);

create function chaos.note_step() returns trigger language plpgsql as $$
begin
    insert into chaos.completed (job, name, result) values (new.job_id, new.name, new.result);
    return null;
end
$$;
create function chaos.note_event() returns trigger language plpgsql as $$
begin
    insert into chaos.emissions (name, payload) values (new.name, new.payload);
    return null;
end
$$;
create trigger chaos_step after insert on pgqueue.steps for each row execute function chaos.note_step();
create trigger chaos_event after insert or update on pgqueue.events for each row execute function chaos.note_event();

grant select, insert on chaos.payments to public;
"""

TABLES = ("calls", "results", "awaits", "emitted")

_EDGES = """
select c.id, p.id, coalesce(c.run_if, 'succeeded'), c.task = '@group', c.state::text, c.errors -> -1 ->> 'class',
    case when c.task = '@group' then g.n else b.n end, extract(epoch from g.at)::float8, h.state::text, e.n
from pgqueue.history c
cross join lateral unnest(c.depends_on) p (id)
left join pgqueue.history h on h.id = p.id
left join (select job, min(n) as n from chaos.ledger where what = 'g' group by job) e on e.job = p.id
left join (select job, min(n) as n from chaos.ledger where what = 'h' group by job) b on b.job = c.id
left join (select job, max(n) as n, max(at) as at from chaos.ledger where what = 'g' group by job) g on g.job = c.id
where c.depends_on is not null
order by c.id
"""
_GROUPS = """
select g.id, g.state::text, l.n, extract(epoch from l.at)::float8,
    array[(g.result ->> 'succeeded')::int, (g.result ->> 'dead')::int, (g.result ->> 'cancelled')::int],
    array[coalesce(m.succeeded, 0), coalesce(m.dead, 0), coalesce(m.cancelled, 0)], m.n, coalesce(j.live, 0),
    g.errors -> -1 ->> 'class', o.state::text
from pgqueue.history g
left join pgqueue.history o on o.id = g.group_id
join (select job, min(n) as n, min(at) as at from chaos.ledger where what = 'g' group by job) l on l.job = g.id
left join (
    select h.group_id, max(x.n) as n, count(*) filter (where h.state = 'succeeded')::int as succeeded,
        count(*) filter (where h.state = 'dead')::int as dead,
        count(*) filter (where h.state = 'cancelled')::int as cancelled
    from pgqueue.history h
    left join (select job, max(n) as n from chaos.ledger where what = 'g' group by job) x on x.job = h.id
    where h.group_id is not null
    group by h.group_id
) m on m.group_id = g.id
left join (
    select group_id, count(*)::int as live from pgqueue.jobs where group_id is not null group by group_id
) j on j.group_id = g.id
where g.task = '@group'
order by g.id
"""
_CALLS = """
select c.job, c.name, c.reservation, h.n, d.n
from chaos.calls c
left join (select job, reservation, min(n) as n from chaos.ledger where what = 'h' group by job, reservation) h
    on h.job = c.job and h.reservation = c.reservation
left join (select job, name, min(n) as n from chaos.completed group by job, name) d
    on d.job = c.job and d.name = c.name
order by c.job
"""
_RESULTS = """
select r.job, r.name, r.value::text, r.at, d.result::text, coalesce(d.times, 0)::int
from chaos.results r
left join (
    select job, name, count(*) as times, (array_agg(result order by n))[1] as result
    from chaos.completed
    group by job, name
) d on d.job = r.job and d.name = r.name
order by r.job
"""
_PAYMENTS = """
select coalesce(p.job, d.job), coalesce(p.name, d.name), coalesce(d.times, 0)::int, coalesce(p.times, 0)::int, c.at
from (select job, name, count(*) as times from chaos.payments group by job, name) p
full join (select job, name, count(*) as times from chaos.completed where name = 'pay' group by job, name) d
    on d.job = p.job and d.name = p.name
left join (select job, name, max(at) as at from chaos.calls group by job, name) c
    on c.job = coalesce(p.job, d.job) and c.name = coalesce(p.name, d.name)
order by 1
"""
_AWAITS = """
select a.job, a.awaited, a.at, extract(epoch from g.at)::float8
from chaos.awaits a
left join (select job, min(at) as at from chaos.ledger where what = 'g' group by job) g on g.job = a.awaited
order by a.job
"""
_ARRIVALS = """
select c.job, c.name, extract(epoch from c.asked_at)::float8, (c.result ->> 'arrived')::boolean,
    (c.result -> 'payload')::text, coalesce(e.times, 0)::int, e.payload::text, a.at
from chaos.completed c
left join (
    select name, count(*) as times, (array_agg(payload order by n))[1] as payload from chaos.emissions group by name
) e on e.name = c.name
left join (select name, min(at) as at from chaos.emitted group by name) a on a.name = c.name
where c.result ? 'arrived'
order by c.job
"""
_LEFT = """
select
    (select count(*) from pgqueue.steps s where not exists (select from pgqueue.jobs j where j.id = s.job_id))
    + (select count(*) from pgqueue.event_waits w where not exists (select from pgqueue.jobs j where j.id = w.job_id))
"""


class StepWitness:
    """The file of one process, in which it records what it does and gets of steps and events."""

    def __init__(self, directory: Path) -> None:
        path = directory / f"{secrets.token_hex(6)}.steps"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def calls(self, job: int, reservation: int, name: str) -> None:
        """The function of a step begins."""
        self._write("calls", job, reservation, name)

    def got(self, job: int, reservation: int, name: str, value: object) -> None:
        """A step has returned, or a wait for an event."""
        self._write("results", job, reservation, name, json.dumps(value))

    def awaited(self, job: int, reservation: int, jobs: Iterable[int]) -> None:
        """A handler goes on because these have ended."""
        for each in jobs:
            self._write("awaits", job, reservation, each)

    def emitted(self, event: str) -> None:
        """An event was emitted, and is committed."""
        self._write("emitted", event)

    def _write(self, *parts: object) -> None:
        # Not time.time(): that one is made to lie.
        now = time.clock_gettime(time.CLOCK_REALTIME)
        os.write(self._file, ("\t".join(map(str, (*parts, f"{now:.6f}"))) + "\n").encode())


def load(conn: psycopg.Connection, directory: Path) -> None:
    """Copy the lines about steps and events from the files of handlers and producers into the database."""
    conn.execute("truncate chaos.calls, chaos.results, chaos.awaits, chaos.emitted")
    rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in TABLES}
    for path in directory.glob("*.steps"):
        for table, row in _lines(path):
            rows[table].append(row)
    for table in TABLES:
        with conn.cursor() as cursor, cursor.copy(f"copy chaos.{table} from stdin".encode()) as copy:
            for row in rows[table]:
                copy.write_row(row)


def _lines(path: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    with path.open() as file:
        for line in file:
            # The last one of a process that was killed may be cut off.
            if line.endswith("\n"):
                table, *row = line.rstrip("\n").split("\t")
                yield table, tuple(row)


def read(conn: psycopg.Connection, reader: Any, away: Sequence[tuple[float, float]]) -> Workflows:
    """Read everything for the checker."""
    row = conn.execute(_LEFT.encode()).fetchone()
    assert row is not None
    return Workflows(
        edges=reader.read(Edge, _EDGES),
        groups=(
            group._replace(result=tuple(group.result), members=tuple(group.members))
            for group in reader.read(Group, _GROUPS)
        ),
        calls=reader.read(Call, _CALLS),
        results=reader.read(Result, _RESULTS),
        payments=reader.read(Payment, _PAYMENTS),
        awaits=reader.read(Await, _AWAITS),
        arrivals=reader.read(Arrival, _ARRIVALS),
        left=row[0],
        away=away,
    )
