"""Statements of the pages, the terminal and monitors. All of them only read, and none counts all jobs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgqueue._filters import exactly
from pgqueue._remedies import for_people
from pgqueue.db.call import Call, Row, read_column, read_first, read_maybe_first, read_rows
from pgqueue.db.json import Document, to_json
from pgqueue.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Page:
    """Ids of jobs in some order. `next`: what to give for the page after it, None at the end.

    `is_cut`: it stopped at its bound of rows, so it may have fewer ids than were asked for.
    """

    ids: list[int]
    next: str | None
    is_cut: bool


def stats(*, recent: bool | None = None) -> Call[dict[str, Any]]:
    """Read the numbers of the queue from its last samples, or count them now.

    None: from the samples while a living worker takes them; else counted up to a bound, and `sampled_at` is None.
    """
    return Call(b"select pgqueue.legible(pgqueue.stats(recent => %s::boolean))", (recent,), read_first)


def counted(numbers: Mapping[str, Any], name: str, write: Callable[[float], str] = str) -> str:
    """Write a number of `stats`: with + where counting stopped, with ~ where it was counted earlier."""
    value, stop = numbers.get(name) or 0, numbers.get("counted_to")
    found = f"{write(value)}+" if stop is not None and value >= stop else write(value)
    return f"~{found}" if counted_at(numbers, name) else found


def counted_at(numbers: Mapping[str, Any], name: str) -> str | None:
    """Return when a number of `stats` was counted, if that was before its sample."""
    if name == "executing":
        return None
    earlier: str | None = numbers.get("counted_at")
    # As of now where only blocked or dead jobs are too many; a schema that is older does not say so.
    return earlier if name in ("blocked", "dead") else numbers.get("ready_counted_at", earlier)


def metrics() -> Call[list[tuple[str, dict[str, str], float]]]:
    """Read the numbers for a monitor: name, labels, value."""
    return Call(b"select name, pgqueue.legible(labels), value from pgqueue.metrics()", (), read_rows)


def doctor() -> Call[list[dict[str, str]]]:
    """Read the problems, the worst first."""
    return Call(b"select pgqueue.legible(to_jsonb(d)) from pgqueue.doctor() d", (), _read_remedies)


def why_late(queue: str | None = None) -> Call[list[dict[str, Any]]]:
    """Read why the jobs of a queue wait; without one, a row for each queue that is late, the worst first."""
    return Call(b"select pgqueue.legible(to_jsonb(w)) from pgqueue.why_late(%s::text) w", (queue,), _read_remedies)


def _read_remedies(rows: list[Row]) -> list[dict[str, Any]]:
    return [for_people(row[0]) for row in rows]


# How a cursor of each order is read and written. Times are whole microseconds: as text they would need quoting.
_CURSORS = {"newest": r"(\d{1,18})", "oldest": r"(\d{1,18})", "due": r"(-?\d{1,18})_(\d{1,18})"}
_IN_ORDER = {
    "newest": b"select job_ids, next_before::text, is_cut from pgqueue.search("
    b"%s::text::jsonb, %s::bigint, %s::integer, %s::integer)",
    "oldest": b"select job_ids, next_after::text, is_cut from pgqueue.search_oldest("
    b"%s::text::jsonb, %s::bigint, %s::integer, %s::integer)",
    "due": b"select job_ids, (extract(epoch from next_after_at) * 1000000)::bigint || '_' || next_after, is_cut"
    b" from pgqueue.search_due(%s::text::jsonb, '1970-01-01 00:00+00'::timestamptz + %s::bigint * interval '1 us',"
    b" %s::bigint, %s::integer, %s::integer)",
}


def search(
    order: str, filter: Mapping[str, object], after: str | None, max_jobs: int, max_rows: int = 20_000
) -> Call[Page]:
    """Find jobs in an order of `pgqueue.search.ORDERS`, from what `next` of the page before was."""
    if order not in _IN_ORDER:
        raise InvalidArgument("there is no such order", hint=f"orders: {', '.join(_IN_ORDER)}")
    cursor = re.fullmatch(_CURSORS[order], after or "", re.ASCII)
    if after and cursor is None:
        raise InvalidArgument("the page cannot continue from here", hint="follow the links of the page")
    place = cursor.groups() if cursor is not None else (None,) * re.compile(_CURSORS[order]).groups
    return Call(
        _IN_ORDER[order],
        (to_json(filter, "filter"), *place, max_jobs, max_rows),
        lambda rows: Page(*rows[0]),
    )


# Groups of dead jobs that are read, the latest.
MOST_GROUPS = 200


def dead_groups(queue: str | None) -> Call[list[dict[str, Any]]]:
    """Read the dead jobs by their last error, the latest first."""
    return Call(
        b"select pgqueue.legible(to_jsonb(d)) from pgqueue.dead_groups(%s::text) d limit %s::integer",
        (queue, MOST_GROUPS),
        read_column,
    )


def dead_lines(group: Mapping[str, Any], queue: str | None) -> Call[list[Row]]:
    """Read (line, jobs, last id, when that died) of the dead jobs of a group, the newest first: 1,000 lines at most."""
    return Call(
        b"select pgqueue.legible(to_jsonb(l.line)) #>> '{}', l.jobs, l.last_id, to_jsonb(l.last_at) #>> '{}'"
        b" from pgqueue.dead_lines(%s::text, %s::text, %s::text, %s::text) l",
        (group["task"], group["class"], group["fingerprint"], queue),
        read_rows,
    )


def dead_kept(queue: str | None) -> Call[tuple[str | None, str | None]]:
    """Read for how long dead jobs are kept, and until when the oldest is; of one queue, or of all.

    A task, and a job itself, may have another time.
    """
    found = {"states": ["dead"], **({} if queue is None else {"queues": [exactly(queue)]})}
    return Call(
        b"select to_jsonb(coalesce(q.retention_dead, s.retention_dead)) #>> '{}',"
        b" (select to_jsonb(j.kept_until) #>> '{}' from pgqueue.search_oldest(%s::text::jsonb, null, 1, 20000) f"
        b" cross join lateral (select a.kept_until from pgqueue.all_jobs a where a.id = f.job_ids[1] limit 1) j)"
        b" from pgqueue.settings s left join pgqueue.queues q on q.name = %s::text",
        (to_json(found, "filter"), queue),
        lambda rows: rows[0],
    )


def retry_fates() -> Call[list[dict[str, Any]]]:
    """Read what became of the jobs of the last bulk retries, the newest first."""
    return Call(b"select pgqueue.legible(to_jsonb(f)) from pgqueue.retry_fates() f", (), read_column)


def troubles(most: int = 50) -> Call[list[dict[str, Any]]]:
    """Read the last attempts that failed or were lost within an hour, by the heartbeats, the newest of these first."""
    return Call(
        b"select pgqueue.legible(to_jsonb(t)) from ("
        b"select x.* from pgqueue.troubles x order by x.n desc limit %s::integer) t",
        (most,),
        read_column,
    )


_LISTED = (
    b"select pgqueue.legible(to_jsonb(x)) from ("
    b"select j.id, j.queue, j.task, j.state, j.priority, j.attempts, j.max_attempts, j.key,"
    b" j.tags, j.run_at, j.due_at, j.created_at, j.reserved_at, j.reserved_by, j.finished_at, j.progress, j.blocked_on,"
    b" j.errors -> -1 ->> 'class' as error_class, left(j.errors -> -1 ->> 'message', 300) as error"
    # One by one: a partition without statistics would be read whole for a list of ids.
    b" from unnest(%s::bigint[]) with ordinality w (id, n)"
    b" cross join lateral (select a.* from pgqueue.all_jobs a where a.id = w.id limit 1) j order by w.n) x"
)


def next_due(queue: str, now: float) -> Call[str | None]:
    """Read when the next job of a queue becomes due after an epoch, one to be retried too."""
    return Call(
        b"select to_jsonb(j.due_at) #>> '{}' from pgqueue.search_due("
        b"%s::text::jsonb, '1970-01-01 00:00+00'::timestamptz + %s::bigint * interval '1 us', 0, 1, 1) f"
        b" cross join lateral (select a.due_at from pgqueue.all_jobs a where a.id = f.job_ids[1] limit 1) j",
        (to_json({"queues": [exactly(queue)]}, "filter"), int(now * 1_000_000)),
        lambda rows: rows[0][0] if rows else None,
    )


def jobs(ids: Sequence[int]) -> Call[list[dict[str, Any]]]:
    """Read these jobs for a list, in this order."""
    return Call(_LISTED, (list(ids),), read_column)


def job(job_id: int) -> Call[Document | None]:
    """Read everything about one job."""
    return Call(
        b"select (select jsonb_object_agg(c.key, pgqueue.legible(c.value)::text) from jsonb_each(to_jsonb(j)) c)"
        b" from pgqueue.all_jobs j where j.id = %s::bigint",
        (job_id,),
        lambda rows: Document(rows[0][0]) if rows else None,
    )


def ended_ago(job_id: int) -> Call[float | None]:
    """Read how many seconds ago a job has ended: None before that, and infinite for one that was deleted."""
    return Call(
        b"select extract(epoch from pgqueue._clock() - j.finished_at)::float8"
        b" from pgqueue.all_jobs j where j.id = %s::bigint",
        (job_id,),
        lambda rows: rows[0][0] if rows else math.inf,
    )


# Executing jobs that are read.
MOST_EXECUTING = 20_000


def executing() -> Call[list[Row]]:
    """Read (worker, queue, task, epochs of claims, ids) of what executes, the oldest first: 20,000 jobs at most."""
    return Call(
        b"select pgqueue.legible(to_jsonb(x.reserved_by)) #>> '{}', pgqueue.legible(to_jsonb(x.queue)) #>> '{}',"
        b" pgqueue.legible(to_jsonb(x.task)) #>> '{}',"
        b" array_agg(extract(epoch from x.reserved_at)::float8 order by x.reserved_at, x.id),"
        b" array_agg(x.id order by x.reserved_at, x.id)"
        # The members of a batch take one slot together.
        b" from (select e.reserved_by, e.queue, e.task, e.reserved_at, e.id from pgqueue.executing e"
        b" where e.leader is null or e.leader = e.id limit %s::integer) x"
        b" group by x.reserved_by, x.queue, x.task",
        (MOST_EXECUTING,),
        read_rows,
    )


def executing_by_tenant(queue: str | None) -> Call[list[Row]]:
    """Read (limit_key, jobs) of what executes of a queue, or of all: of 20,000 jobs at most."""
    return Call(
        b"select pgqueue.legible(to_jsonb(x.limit_key)) #>> '{}', count(*) from ("
        b"select e.limit_key from pgqueue.executing e where e.limit_key is not null"
        b" and e.queue = coalesce(%s::text, e.queue) limit 20000) x group by x.limit_key",
        (queue,),
        read_rows,
    )


def due_since(queue: str, tenants: Sequence[str]) -> Call[list[Row]]:
    """Read (limit_key, epoch) since when the oldest due job of each of these tenants of a queue waits.

    Reads the first 5,000 jobs of the queue for each; of a tenant with none among them nothing is read.
    """
    filters = [to_json({"queues": [exactly(queue)], "tenants": [exactly(each)]}, "filter") for each in tenants]
    return Call(
        b"select pgqueue.legible(to_jsonb(j.limit_key)) #>> '{}', extract(epoch from j.due_at)::float8"
        b" from unnest(%s::text[]) w (filter)"
        b" cross join lateral pgqueue.search_due(w.filter::jsonb, null, null, 1, %s::integer) f"
        b" cross join lateral ("
        b"select a.limit_key, a.due_at from pgqueue.all_jobs a where a.id = f.job_ids[1] limit 1) j",
        (filters, MOST_FACETED),
        read_rows,
    )


def running(worker: str) -> Call[list[dict[str, Any]]]:
    """Read the jobs that a worker holds, the oldest first, at most 200."""
    return Call(
        _RUNNING + b" where e.reserved_by = %s::text order by e.reserved_at limit 200) x", (worker,), read_column
    )


def running_in(queue: str) -> Call[list[dict[str, Any]]]:
    """Read the executing jobs of a queue, the oldest first, at most 20."""
    return Call(_RUNNING + b" where e.queue = %s::text order by e.reserved_at limit 20) x", (queue,), read_column)


_RUNNING = b"select pgqueue.legible(to_jsonb(x)) from (select e.* from pgqueue.executing e"


def facets(ids: Sequence[int], most: int = 5) -> Call[list[Row]]:
    """Read (facet, value, jobs) of these jobs: of task, queue, tenant, key, tag and worker the most frequent values."""
    return Call(
        b"select x.facet, pgqueue.legible(to_jsonb(x.value)) #>> '{}', x.jobs from ("
        b"select f.facet, f.value, count(*) as jobs,"
        b" row_number() over (partition by f.facet order by count(*) desc, f.value) as n"
        b" from unnest(%s::bigint[]) w (id)"
        b" cross join lateral (select a.* from pgqueue.all_jobs a where a.id = w.id limit 1) j"
        b" cross join lateral (select * from (values ('task', j.task), ('queue', j.queue), ('tenant', j.limit_key),"
        b" ('key', j.key), ('worker', j.reserved_by)) v (facet, value)"
        b" union all select 'tag', t.tag from unnest(j.tags) t (tag)) f"
        b" where f.value is not null group by f.facet, f.value) x where x.n <= %s::integer"
        b" order by array_position('{task,queue,tenant,key,tag,worker}'::text[], x.facet), x.n",
        (list(ids), most),
        read_rows,
    )


# Due jobs that are read to find out what fills a queue.
MOST_FACETED = 5000


def queue_facets(queue: str | None, most: int = 5) -> Call[list[Row]]:
    """Read (facet, value, jobs) of what fills a queue, or all: of its first 5,000 due jobs, and of its blocked ones."""
    return Call(
        b"select f.facet, pgqueue.legible(to_jsonb(f.value)) #>> '{}', f.jobs"
        b" from pgqueue.queue_facets(%s::text, %s::integer, %s::integer) f",
        (queue, MOST_FACETED, most),
        read_rows,
    )


def job_log(job_id: int, after: int = 0) -> Call[list[dict[str, Any]]]:
    """Read log lines of a job from one on, the oldest first: n, attempt, at, level, line."""
    return Call(
        b"select pgqueue.legible(to_jsonb(l)) from pgqueue.job_log(%s::bigint, %s::bigint) l",
        (job_id, after),
        read_column,
    )


def newest_log(job_id: int, most: int = 300) -> Call[list[dict[str, Any]]]:
    """Read the newest log lines of each attempt of a job, the oldest first, as job_log(); is_cut: there are older ones.

    They are among the newest 10,000 lines of the job, so a very old attempt may have none.
    """
    # job_log() reads forward: its pages are walked to the last two that have lines, and the empty one behind them.
    return Call(
        b"with recursive pages (after, number) as (select 0::bigint, 1 union all"
        b" select (select max(l.n) from pgqueue.job_log(%s::bigint, p.after, 10000) l), p.number + 1"
        b" from pages p where p.after is not null and p.number < 100)"
        b" select pgqueue.legible(to_jsonb(x) - 'place') from (select l.*,"
        b" count(*) over (partition by l.attempt) > %s::integer as is_cut,"
        b" row_number() over (partition by l.attempt order by l.n desc) as place"
        b" from (select p.after from pages p where p.after is not null order by p.after desc limit 3) p"
        b" cross join lateral pgqueue.job_log(%s::bigint, p.after, 10000) l) x"
        b" where x.place <= %s::integer order by x.n",
        (job_id, most, job_id, most),
        read_column,
    )


def breakers() -> Call[list[dict[str, Any]]]:
    """Read the breakers: kind, target, failures, of, pause; those that are open first."""
    return Call(
        b"select pgqueue.legible(to_jsonb(b)) from pgqueue.breakers b order by not exists (select from pgqueue.pauses p"
        b" where p.source = 'breaker' and p.kind = b.kind and p.target = b.target and p.until > pgqueue._clock()),"
        b" b.kind, b.target limit %s::integer",
        (MOST_LISTED + 1,),
        read_column,
    )


def queues() -> Call[list[dict[str, Any]]]:
    """Read the options of queues."""
    return Call(b"select pgqueue.legible(to_jsonb(q)) from pgqueue.queues q order by q.name", (), read_column)


# Rows that a list of tasks, workers, schedules or breakers shows; one more is read, to find out whether there are more.
MOST_LISTED = 500


def tasks() -> Call[list[dict[str, Any]]]:
    """Read the options of tasks: declared by code, set by an operator, and in effect."""
    return Call(_TASKS + b" order by t.name limit %s::integer", (MOST_LISTED + 1,), read_column)


def task(name: str) -> Call[dict[str, Any] | None]:
    """Read the options of one task."""
    return Call(_TASKS + b" where t.name = %s::text", (name,), read_maybe_first)


_TASKS = (
    b"select pgqueue.legible(to_jsonb(t) || jsonb_build_object('effective', to_jsonb(e))) from pgqueue.tasks t"
    b" join pgqueue.effective_tasks e on e.name = t.name"
)


def about_task(name: str) -> Call[tuple[str | None, str | None]]:
    """Read the address of the documentation of a task, and who is responsible for it."""
    return Call(
        b"select t.docs, t.owner from pgqueue.effective_tasks t where t.name = %s::text",
        (name,),
        lambda rows: rows[0] if rows else (None, None),
    )


def workers() -> Call[list[dict[str, Any]]]:
    """Read the workers, silent ones first."""
    return Call(
        b"select pgqueue.legible(to_jsonb(w)) from pgqueue.worker_status w"
        b" order by w.is_alive nulls first, w.worker limit %s::integer",
        (MOST_LISTED + 1,),
        read_column,
    )


def worker(name: str) -> Call[dict[str, Any] | None]:
    """Read one worker."""
    return Call(
        b"select pgqueue.legible(to_jsonb(w)) from pgqueue.worker_status w where w.worker = %s::text",
        (name,),
        read_maybe_first,
    )


def worker_memory() -> Call[list[Row]]:
    """Read (worker, epochs of minutes, bytes) of the last hour, oldest first."""
    return Call(
        b"select pgqueue.legible(to_jsonb(m.worker)) #>> '{}',"
        b" array_agg(extract(epoch from m.at)::float8 order by m.at), array_agg(m.memory order by m.at)"
        b" from pgqueue.worker_memory m group by m.worker",
        (),
        read_rows,
    )


def schedules() -> Call[list[dict[str, Any]]]:
    """Read the schedules with their next three times and last three runs.

    First those that cannot run, then those that are late, those whose last run came to nothing, and the next due.
    """
    return Call(
        b"select pgqueue.legible(" + _SCHEDULE + b") from pgqueue.effective_schedules s"
        b" join pgqueue.schedules d on d.name = s.name"
        # Two indexes: the newest row of all would be found by reading all runs of a week.
        b" cross join lateral (select (select h.outcome = 'overlap' from pgqueue.schedule_history h"
        b" where h.schedule = s.name and h.at is not null order by h.at desc limit 1) is true"
        b" or (select h.job_state = 'dead' from pgqueue.schedule_history h"
        b" where h.schedule = s.name and h.job_id is not null order by h.n desc limit 1) is true as was_vain) l"
        b" order by s.paused_at is not null, s.error is null, s.next_at < pgqueue._clock() is not true, not l.was_vain,"
        b" s.next_at nulls last, s.name limit %s::integer",
        (3, MOST_LISTED + 1),
        read_column,
    )


def schedule(name: str) -> Call[dict[str, Any] | None]:
    """Read one schedule with its next three times and last twenty runs."""
    return Call(
        b"select " + _SCHEDULE + b" from pgqueue.effective_schedules s"
        b" join pgqueue.schedules d on d.name = s.name where s.name = %s::text",
        (20, name),
        lambda rows: rows[0][0] if rows else None,
    )


# The declared rule and the one that an operator has set, the times after the next one, and the last runs.
_SCHEDULE = (
    b"to_jsonb(s) || jsonb_build_object('declared_expression', d.declared_expression,"
    b" 'declared_timezone', d.declared_timezone, 'own_expression', d.expression, 'own_timezone', d.timezone,"
    b" 'later', (select case when s.next_at is null then '[]' when s.every is not null"
    b" then jsonb_build_array(s.next_at + s.every, s.next_at + 2 * s.every)"
    b" else (select jsonb_build_array(n.at, pgqueue.cron_next(s.expression, n.at, s.timezone))"
    b" from (select pgqueue.cron_next(s.expression, s.next_at, s.timezone) as at) n) end),"
    b" 'runs', coalesce((select jsonb_agg(to_jsonb(r) order by r.n desc)"
    b" from (select h.* from pgqueue.schedule_history h where h.schedule = s.name and h.outcome <> 'planned'"
    b" order by h.n desc limit %s::integer) r), '[]'))"
)


def audit(before: int | None) -> Call[list[dict[str, Any]]]:
    """Read the actions of operators, newest first."""
    return Call(
        b"select pgqueue.legible(to_jsonb(a)) from pgqueue.audit a"
        b" where a.n < coalesce(%s::bigint, 9223372036854775807) order by a.n desc limit 100",
        (before,),
        read_column,
    )


def last_changes(queue: str) -> Call[list[dict[str, Any]]]:
    """Read who last set each option of a queue and its limit: option, action, actor, at; of the last 5,000 actions."""
    return Call(
        b"select pgqueue.legible(to_jsonb(x)) from ("
        b"select distinct on (o.name) o.name as option, a.action, a.actor, a.at"
        b" from (select u.* from pgqueue.audit u order by u.n desc limit 5000) a cross join lateral ("
        b"select 'limit' where a.action in ('set_limit', 'drop_limit')"
        b" and (a.filter ->> 'kind', a.filter ->> 'target') = ('queue', %s::text)"
        # What was reset has no value after it.
        b" union all select k.name from jsonb_object_keys(case when a.action = 'configure_queue'"
        b" and a.filter ->> 'queue' = %s::text then coalesce(a.filter -> 'before', '{}')"
        b" || coalesce(a.filter -> 'after', '{}') else '{}' end) k (name)) o (name) order by o.name, a.n desc) x",
        (queue, queue),
        read_column,
    )


def settings() -> Call[dict[str, Any]]:
    """Read the settings of the queue."""
    return Call(b"select to_jsonb(s) - 'one' from pgqueue.settings s", (), read_first)


def rights() -> Call[dict[str, Any]]:
    """Read the rights of this role, and whether the server takes writes."""
    return Call(
        b"select jsonb_build_object('role', current_user, 'database', current_database(),"
        b" 'read', has_function_privilege('pgqueue.stats(boolean)', 'execute'),"
        b" 'act', has_function_privilege('pgqueue.cancel(bigint)', 'execute'),"
        b" 'standby', pg_is_in_recovery(), 'server', current_setting('server_version'),"
        b" 'clock', extract(epoch from clock_timestamp()))",
        (),
        read_first,
    )


def as_actor(actor: str, via: str) -> Call[None]:
    """Set the actor of this transaction, for the audit."""
    return Call(
        b"select set_config('pgqueue.actor', %s::text, true), set_config('pgqueue.via', %s::text, true)",
        (actor, via),
        lambda rows: None,
    )
