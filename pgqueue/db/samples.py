"""Statements that read samples: what maintenance counted every ten seconds, and its sums of ten minutes."""

from __future__ import annotations

from pgqueue.db.call import Call, Row, read_first, read_maybe_first, read_rows

# Columns of a sample: live jobs, and whether all were counted at its time.
_LIVE = b"s.waiting + s.failed + s.blocked + s.executing"
_EXACT = b"s.counted_to is null and (s.counted_at is null or s.counted_at = s.at)"

# Up to this time, in seconds, samples of ten seconds are read: those of ten minutes begin up to ten minutes before it.
_FINE = 3 * 3600

# Samples of queues that one statement reads, for histograms.
_MOST = 20_000


def sampled_at() -> Call[str | None]:
    """Read when the last sample was taken."""
    return Call(b"select to_jsonb(max(at)) #>> '{}' from pgqueue.samples where span = 10", (), read_maybe_first)


def series(queue: str, seconds: int) -> Call[list[Row]]:
    """Read a queue's samples over a time until now, "" for all queues.

    (epoch, span, due, executing, failed, dead, lag, ended, live jobs, whether all were counted at that time).
    """
    return Call(
        b"select extract(epoch from s.at)::float8, s.span, s.due, s.executing, s.failed, s.dead,"
        b" coalesce(extract(epoch from s.at - s.oldest_due_at), 0)::float8, s.ended, "
        + _LIVE
        + b", "
        + _EXACT
        + b" from pgqueue.samples s"
        b" where s.span = %s::smallint and s.at > (select pgqueue._clock()) - %s::integer * interval '1 s'"
        b" and s.queue = %s::text order by s.at",
        (_span(seconds), seconds, queue),
        read_rows,
    )


def begins(seconds: int) -> Call[float | None]:
    """Read when the history begins that plots of a time show, an epoch; None: nothing is recorded."""
    return Call(
        b"select extract(epoch from min(s.at))::float8 - %s::integer from pgqueue.samples s"
        b" where s.span = %s::smallint",
        (_span(seconds), _span(seconds)),
        read_first,
    )


def _span(seconds: int) -> int:
    return 10 if seconds <= _FINE else 600


def series_of_task(task: str, seconds: int) -> Call[list[Row]]:
    """Read (epoch, span, what ended of a task) of the samples of each queue over a time until now, by time.

    Each time has a row without what ended, too.
    """
    return Call(
        b"select extract(epoch from s.at)::float8, s.span, case when s.queue <> '' then s.ended -> %s::text end"
        b" from pgqueue.samples s"
        b" where s.span = %s::smallint and s.at > (select pgqueue._clock()) - %s::integer * interval '1 s'"
        b" and (s.queue = '' or s.ended ? %s::text) order by s.at",
        (task, _span(seconds), seconds, task),
        read_rows,
    )


def waits_of_a_day(queue: str) -> Call[list[Row]]:
    """Read the buckets of the times that jobs of a queue waited within a day, by sample and task."""
    return Call(
        b"select e.value -> 'wait' -> 'buckets' from pgqueue.samples s cross join jsonb_each(s.ended) e"
        b" where s.span = 600 and s.at > (select pgqueue._clock()) - interval '1 day' and s.queue = %s::text"
        b" and e.value ? 'wait'",
        (queue,),
        read_rows,
    )


def lately(seconds: int) -> Call[list[Row]]:
    """Read (queue, epoch, span, live jobs, whether all were counted then, ended) of all queues over a short time."""
    return Call(
        b"select pgqueue.legible(to_jsonb(s.queue)) #>> '{}', extract(epoch from s.at)::float8, s.span, "
        + _LIVE
        + b", "
        + _EXACT
        + b", s.ended from pgqueue.samples s"
        b" where s.span = 10 and s.at > (select pgqueue._clock()) - %s::integer * interval '1 s'",
        (seconds,),
        read_rows,
    )


def since(number: int | None) -> Call[list[Row]]:
    """Read (number, queue, ended) of the samples of queues after one, the newest 20,000; None: of ten minutes.

    The row without a queue has the number of the last sample, which a restored database may have once more.
    """
    first = number is None
    return Call(
        b"(select s.n, pgqueue.legible(to_jsonb(s.queue)) #>> '{}', s.ended from pgqueue.samples s"
        b" where s.span = 10 and s.queue <> '' and s.ended is not null and "
        # Each by its index, from the newest on: thousands of queues write a row each in ten seconds.
        + (
            b"s.at > (select pgqueue._clock()) - interval '10 min' order by s.at"
            if first
            else b"s.n > %s::bigint order by s.n"
        )
        + b" desc limit %s::integer) union all (select max(x.n), null, null from pgqueue.samples x)",
        (_MOST,) if first else (number, _MOST),
        read_rows,
    )


def died(seconds: int, queue: str = "") -> Call[int]:
    """Count the jobs of a queue, "" for all, that died over a time until now, as samples have it.

    For up to three hours by those of ten seconds, for longer by those of ten minutes, and of ten seconds since.
    """
    if seconds <= _FINE:
        return Call(
            b"select coalesce(sum((e.value ->> 'dead')::bigint), 0)::bigint"
            b" from pgqueue.samples s cross join jsonb_each(s.ended) e"
            b" where s.span = 10 and s.queue = %s::text"
            b" and s.at > (select pgqueue._clock()) - %s::integer * interval '1 s'",
            (queue, seconds),
            read_first,
        )
    return Call(
        b"with coarse as (select s.at, s.ended from pgqueue.samples s where s.span = 600 and s.queue = %s::text"
        b" and s.at > (select pgqueue._clock()) - %s::integer * interval '1 s'),"
        b" every as (select c.ended from coarse c union all"
        b" select s.ended from pgqueue.samples s where s.span = 10 and s.queue = %s::text"
        b" and s.at > greatest((select max(c.at) from coarse c), (select pgqueue._clock()) - interval '15 min'))"
        b" select coalesce(sum((e.value ->> 'dead')::bigint), 0)::bigint"
        b" from every cross join jsonb_each(every.ended) e",
        (queue, seconds, queue),
        read_first,
    )


def usual_deaths() -> Call[float | None]:
    """Read how many jobs usually die in a day: the mean of the six days before the last one; None: less is known."""
    return Call(
        b"select case when count(*) >= 144 then 144 * sum((select coalesce(sum((e.value ->> 'dead')::bigint), 0)"
        b" from jsonb_each(s.ended) e))::float8 / count(*) end from pgqueue.samples s"
        b" where s.span = 600 and s.queue = '' and s.at > (select pgqueue._clock()) - interval '7 days'"
        b" and s.at <= (select pgqueue._clock()) - interval '1 day'",
        (),
        read_first,
    )


def runs_of_a_day() -> Call[list[Row]]:
    """Read (task, buckets of the times of runs) of samples of a day: of 20,000 rows at most.

    As why_late() reads them: of each queue those of ten minutes, and of the last four hours in which the task ran.
    """
    return Call(
        b"select pgqueue.legible(to_jsonb(x.key)) #>> '{}', x.value -> 'run' -> 'buckets' from ("
        b"select s.span, e.key, e.value,"
        b" row_number() over (partition by s.span, s.queue, e.key order by s.at desc) as n from ("
        b"(select s.span, s.queue, s.at, s.ended from pgqueue.samples s where s.span = 10"
        b" and s.at > (select pgqueue._clock()) - interval '10 min' and s.queue <> '' order by s.at desc limit 10000)"
        b" union all (select s.span, s.queue, s.at, s.ended from pgqueue.samples s where s.span = 600"
        b" and s.at > (select pgqueue._clock()) - interval '1 day' and s.queue <> '' order by s.at desc limit 10000)) s"
        b" cross join jsonb_each(s.ended) e where e.value ? 'run') x where x.span = 10 or x.n <= 24",
        (),
        read_rows,
    )


def trends() -> Call[list[Row]]:
    """Read (queue, epochs, due, lags) of every queue in the last hour, oldest first; "" stands for all of them.

    One sample of six: sixty probes of the index find their times, however many queues there are.
    """
    return Call(
        b"with recursive chosen (at) as ("
        b"(select x.at from pgqueue.samples x where x.span = 10 order by x.at desc limit 1) union all"
        b" select (select x.at from pgqueue.samples x where x.span = 10 and x.at <= c.at - interval '59 s'"
        b" order by x.at desc limit 1) from chosen c where c.at > pgqueue._clock() - interval '1 h')"
        b" select pgqueue.legible(to_jsonb(s.queue)) #>> '{}',"
        b" array_agg(extract(epoch from s.at)::float8 order by s.at), array_agg(s.due order by s.at),"
        b" array_agg(coalesce(extract(epoch from s.at - s.oldest_due_at), 0)::float8 order by s.at)"
        # OFFSET 0 keeps the planner from a join that reads every sample, as it does while the table grows.
        b" from chosen c cross join lateral ("
        b"select x.queue, x.at, x.due, x.oldest_due_at from pgqueue.samples x"
        b" where x.span = 10 and x.at = c.at offset 0) s"
        b" where c.at > pgqueue._clock() - interval '1 h' group by s.queue",
        (),
        read_rows,
    )


def ended_by_task(seconds: int) -> Call[list[Row]]:
    """Read (task, ended, epoch, span) of each queue over a time until now: sums of ten minutes, and the last samples.

    The samples are those that are not in a sum yet, and those of the last ten minutes.
    """
    return Call(
        b"with bounds as (select now.at - %s::integer * interval '1 s' as since,"
        b" least((select max(c.at) from pgqueue.samples c where c.span = 600), now.at - interval '10 min') as lately"
        b" from (select pgqueue._clock() as at) now)"
        b" select pgqueue.legible(to_jsonb(e.key)) #>> '{}', e.value, extract(epoch from s.at)::float8, s.span"
        b" from (select c.* from pgqueue.samples c where c.span = 600 and c.at > (select b.since from bounds b)"
        b" union all select f.* from pgqueue.samples f where f.span = 10"
        b" and f.at >= (select case when exists (select from pgqueue.samples c where c.span = 600 and c.at > b.since)"
        b" then b.lately else b.since end from bounds b)) s"
        b" cross join jsonb_each(s.ended) e where s.queue <> ''",
        (seconds,),
        read_rows,
    )
