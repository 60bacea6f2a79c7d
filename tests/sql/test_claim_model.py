"""A claim beside a plain model of its contract: which jobs may start, in which order, and that none is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgqueue.schema import bundled
from tests.calls import call, enqueue, ids, maintain, reserve, reserve_one, value
from tests.databases import Database

# kind, target, at most
_LIMITS = [("queue", "a", 2), ("task", "u", 2), ("key", "k", 1), ("limit_key", "k", 1), ("limit_key", "k*", 2)]

# What is paused, by the name of the rule.
_PAUSES = {"paused b": ("queue", "b"), "paused u": ("task", "u"), "paused k": ("limit_key", "k*")}

_jobs = st.lists(
    st.fixed_dictionaries(
        {
            "queue": st.sampled_from("abc"),
            "priority": st.sampled_from([-1, 0, 1]),
            "task": st.sampled_from("ttu"),
            "delay": st.sampled_from([None, None, None, "1 hour"]),
            "what": st.sampled_from(
                ["plain"] * 8 + ["k", "l", "limit_key", "both", "expires", "returned", "locked", "locked k"]
            ),
        }
    ),
    max_size=25,
)
_claims = st.fixed_dictionaries(
    {
        "max_jobs": st.one_of(st.integers(1, 12), st.just(60)),
        "queues": st.sampled_from([None, None, ["a"], ["b", "a"], ["c", "b", "a"], ["a", "none"]]),
        "strategy": st.sampled_from(["weighted"] * 3 + ["strict", "lag", "round_robin"]),
    }
)
_rules = st.sets(st.sampled_from([*_LIMITS, *_PAUSES, "weight"]), max_size=3)


@dataclass(frozen=True)
class _Job:
    id: int
    queue: str
    priority: int
    task: str
    key: str | None
    limit_key: str | None
    resumed: bool
    ready_at: datetime
    is_due: bool

    @property
    def lane(self) -> tuple[str, int]:
        return self.queue, self.priority

    def limits(self) -> Iterator[tuple[tuple[str, str, int], str]]:
        """Each limit that it is under, and what is counted: a limit_key with * counts each value for itself."""
        yield _LIMITS[0], self.queue if self.queue == "a" else ""
        yield _LIMITS[1], self.task if self.task == "u" else ""
        yield _LIMITS[2], "k" if self.key == "k" else ""
        yield _LIMITS[3], "k" if self.limit_key == "k" else ""
        yield _LIMITS[4], "k" if self.limit_key == "k" else ""


@pytest.mark.long
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(jobs=_jobs, claim=_claims, rules=_rules)
def test_a_claim_starts_what_the_contract_says(
    database: Database, jobs: list[dict[str, object]], claim: dict[str, object], rules: set[object]
) -> None:
    if claim["queues"] is None and claim["strategy"] == "strict":
        claim = {**claim, "queues": ["b", "c", "a"]}
    with database.connect() as conn, database.connect(autocommit=False) as other:
        conn.execute("truncate pgqueue.jobs, pgqueue.limits, pgqueue.limit_waits, pgqueue.queues, pgqueue.pauses")
        locked = {job_id for each in jobs if (job_id := _make(conn, other, each)) is not None}
        for rule in rules:
            if rule in _PAUSES:
                call(conn, "pause", *_PAUSES[str(rule)])
            elif rule == "weight":
                call(conn, "configure_queue", "c", weight=3)
            else:
                call(conn, "set_limit", *rule)  # type: ignore[misc]
        maintain(conn)
        with conn.transaction():
            waiting = _read(conn)
            claimed = _claim(conn, claim)
        _check(waiting, locked, claimed, claim, rules)
        other.rollback()


def _make(conn: psycopg.Connection, other: psycopg.Connection, job: dict[str, object]) -> int | None:
    """Enqueue a job; its id if another session has locked it."""
    options = {name: job[name] for name in ("queue", "priority", "delay") if job[name] is not None}
    what = job["what"]
    if what in ("k", "l", "both", "locked k"):
        options["key"] = "l" if what == "l" else "k"
    if what in ("limit_key", "both"):
        options["limit_key"] = "k"
    if what == "expires":
        options["expires_in"] = timedelta(hours=2)
    job_id: int = enqueue(conn, str(job["task"]), **options)
    if what == "returned" and job["delay"] is None:
        # Taken back by hand: a claim would also block others.
        conn.execute(
            "update pgqueue.jobs set resumed = true, reservation = 1048576, attempts = 0 where id = %s", [job_id]
        )
    elif what in ("locked", "locked k"):
        other.execute("select from pgqueue.jobs where id = %s for update skip locked", [job_id])
        return job_id
    return None


def _read(conn: psycopg.Connection) -> dict[int, _Job]:
    rows = conn.execute(
        "select id, queue, priority, task, key, limit_key, resumed, ready_at, ready_at <= pgqueue._clock()"
        " from pgqueue.jobs"
    ).fetchall()
    return {row[0]: _Job(*row) for row in rows}


def _claim(conn: psycopg.Connection, claim: dict[str, object]) -> list[int]:
    """Claim as often as it takes: one call stops early when blocking jobs takes it long."""
    claimed: list[int] = []
    for _ in range(10):
        wanted = int(str(claim["max_jobs"])) - len(claimed)
        if wanted == 0:
            break
        claimed += ids(reserve(conn, wanted, queues=claim["queues"], strategy=claim["strategy"]))
    return claimed


def _check(
    waiting: dict[int, _Job], locked: set[int], claimed: list[int], claim: dict[str, object], rules: set[object]
) -> None:
    assert len(claimed) == len(set(claimed)) <= int(str(claim["max_jobs"]))
    executing: Counter[object] = Counter()
    keys: set[tuple[str, str]] = set()

    def may_start(job: _Job) -> bool:
        if not job.is_due or job.id in locked or _is_paused(job, rules):
            return False
        if claim["queues"] is not None and job.queue not in claim["queues"]:  # type: ignore[operator]
            return False
        if job.key is not None:
            if (job.queue, job.key) in keys:
                return False
            ahead = (x for x in waiting.values() if (x.queue, x.key) == (job.queue, job.key) and x.id < job.id)
            if any(x.is_due for x in ahead):
                return False
        return all(executing[limit, on] < limit[2] for limit, on in _touched(job, rules))

    rest = dict(waiting)
    for job_id in claimed:
        job = waiting[job_id]
        assert may_start(job)
        del rest[job_id]
        if job.key is not None:
            keys.add((job.queue, job.key))
        executing.update(_touched(job, rules))
    left = [job for job in rest.values() if may_start(job)]
    if len(claimed) < int(str(claim["max_jobs"])):
        assert left == []
    order = [waiting[job_id] for job_id in claimed]
    for lane in {job.lane for job in order}:
        # Jobs that came back go first, each part by its time, and none that could start was skipped.
        in_lane = [job for job in order if job.lane == lane]
        assert [_place(job) for job in in_lane] == sorted(_place(job) for job in in_lane)
        assert all(_place(job) > _place(in_lane[-1]) for job in left if job.lane == lane)
    if claim["strategy"] == "strict":
        served = [claim["queues"].index(job.queue) for job in order]  # type: ignore[attr-defined]
        assert served == sorted(served)
    if claim["strategy"] == "weighted" and "weight" not in rules:
        # The highest priority over all goes first.
        assert [job.priority for job in order] == sorted((job.priority for job in order), reverse=True)
        assert all(job.priority <= order[-1].priority for job in left if order)
        touched = [job for job in waiting.values() if job.key is not None or any(_touched(job, rules))]
        if not touched and not locked:
            assert claimed == _by_lane(waiting, claim, rules)[: len(claimed)]


def _touched(job: _Job, rules: set[object]) -> list[tuple[tuple[str, str, int], str]]:
    found = [(limit, on) for limit, on in job.limits() if on and limit in rules]
    # The limit of the value itself, else that of the longest prefix.
    if any(limit == _LIMITS[3] for limit, _ in found):
        found = [(limit, on) for limit, on in found if limit != _LIMITS[4]]
    return found


def _is_paused(job: _Job, rules: set[object]) -> bool:
    return (
        (job.queue == "b" and "paused b" in rules)
        or (job.task == "u" and "paused u" in rules)
        or (job.limit_key == "k" and "paused k" in rules)
    )


def _place(job: _Job) -> tuple[bool, datetime, int]:
    return not job.resumed, job.ready_at, job.id


def _by_lane(waiting: dict[int, _Job], claim: dict[str, object], rules: set[object]) -> list[int]:
    """The order of a claim without rules: the lane with the oldest job that never ran first, then the rest of it."""
    due = [
        job
        for job in waiting.values()
        if job.is_due and not _is_paused(job, rules) and (claim["queues"] is None or job.queue in claim["queues"])  # type: ignore[operator]
    ]
    first = {
        lane: min((job.resumed, job.ready_at) for job in due if job.lane == lane)[1]
        for lane in {job.lane for job in due}
    }
    due.sort(key=lambda job: (-job.priority, first[job.lane], job.queue, _place(job)))
    return [job.id for job in due]


def test_rules_that_touch_no_job_of_a_claim_change_nothing(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "task", "other", 1)
    call(conn, "set_limit", "queue", "other", 1)
    call(conn, "set_limit", "limit_key", "o*", 1)
    call(conn, "configure_queue", "heavy", weight=9)
    enqueue(conn, queue="resting")
    call(conn, "pause_queue", "resting")
    later, low, high = enqueue(conn, delay="1 hour"), enqueue(conn), enqueue(conn, priority=1)
    elsewhere = enqueue(conn, queue="elsewhere")
    # A weight of any queue that it serves makes slots draw.
    served = ["default", "elsewhere", "resting"]
    assert ids(reserve(conn, 1, queues=served)) == [high]
    assert ids(reserve(conn, 50, queues=["default", "none"])) == [low]
    assert ids(reserve(conn, 50)) == [elsewhere]
    assert reserve(conn, 50) == []
    assert value(conn, "select state from pgqueue.all_jobs where id = %s", later) == "waiting"


def test_the_statement_that_explains_a_claim_claims_what_reserve_does(conn: psycopg.Connection) -> None:
    page = (bundled.directory("sql") / "README.md").read_text()
    [statement] = re.findall(r"```sql\n(with due as .*?)```", page, flags=re.DOTALL)
    enqueue(conn, delay="1 hour")
    for queue, priority in (("a", 0), ("b", 1), ("a", 1), ("paused", 2), ("b", 0), ("a", 0)):
        enqueue(conn, queue=queue, priority=priority)
    call(conn, "pause_queue", "paused")
    maintain(conn)
    for count in (1, 3, 10):
        with conn.transaction(force_rollback=True):
            expected = [(row.id, row.task, row.args) for row in reserve(conn, count)]
        with conn.transaction(force_rollback=True):
            rows = conn.execute(statement.replace("limit 10", f"limit {count}").encode()).fetchall()
        assert sorted(row[:3] for row in rows) == sorted(expected)


def test_a_lapsed_lease_is_taken_back_where_no_session_runs_maintenance(
    conn: psycopg.Connection, clock: object
) -> None:
    job_id = enqueue(conn)
    maintain(conn)
    reserve_one(conn, lease="1 s")
    clock.advance("4 s")  # type: ignore[attr-defined]
    assert ids(reserve(conn, 1)) == [job_id]


def test_a_full_claim_passes_the_wake_up_on(conn: psycopg.Connection, database: Database) -> None:
    maintain(conn)
    listener = database.connect()
    channel = value(listener, "select channel from pgqueue.idle('other', null, '1 min')")
    listener.execute(f"listen {channel}".encode())
    conn.execute("set pgqueue.notify = off")
    enqueue(conn)
    enqueue(conn)
    conn.execute("set pgqueue.notify = on")
    assert len(reserve(conn, 2)) == 2
    assert [each.payload for each in listener.notifies(timeout=60, stop_after=1)] == ["wake"]
    enqueue_quietly = "select set_config('pgqueue.notify', 'off', true), pgqueue.enqueue('t')"
    conn.execute(enqueue_quietly)
    assert len(reserve(conn, 2)) == 1
    listener.execute("select 1")
    assert list(listener.notifies(timeout=0)) == []
