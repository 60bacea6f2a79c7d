"""The plans that the functions run by, as auto_explain shows them: never a scan or a sort of jobs.

They must be right for a plan that was cached while the tables were empty and never analysed, and for one made on a
full table. Asked of the statements themselves, inside the functions, with their settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, column, enqueue, enqueue_many, ids, maintain, pairs, reserve, table, value, within
from tests.databases import Cloner, Database
from tests.sql.plans import blocks

WAITING = FUTURE = 30_000
EXECUTING = 2_000

FILL = f"""
insert into pgqueue.jobs (queue, task, args, priority, run_at, ready_at, created_at, state, reservation, lease,
    lease_expires_at, reserved_by)
select 'default', 't', '{{}}', 0, at, at, at, state::pgqueue.job_state, reservation, lease, ends, worker
from (
    select clock_timestamp() - '1 h'::interval + n * '1 us'::interval as at, 'waiting' as state, 0 as reservation,
        null::interval as lease, null::timestamptz as ends, null as worker
    from generate_series(1, {WAITING}) n
    union all
    select clock_timestamp() + '1 h'::interval + n * '1 us'::interval, 'waiting', 0, null, null, null
    from generate_series(1, {FUTURE}) n
    union all
    select clock_timestamp() - '1 h'::interval, 'executing', 1, '1 day', clock_timestamp() + '1 day', 'other'
    from generate_series(1, {EXECUTING}) n
) x;
insert into pgqueue.dedupe_keys (task, dedupe, job_id, until)
select 't', 'x' || n, -n, case when n % 10 < 2 then now() + (n - 25000) * '1 h'::interval end
from generate_series(1, 30000) n;
insert into pgqueue.idle_workers
select 'default', now() - n * '1 s'::interval, 'w' || n % 500, 'c' from generate_series(1, 5000) n;
insert into pgqueue.maintenance_runs (at) select now() from generate_series(1, 3000) n;
-- Those jobs are older than whatever heads there are.
delete from pgqueue.heads;
"""

BULK: list[tuple[str, dict[str, Any]]] = [
    ("run_now_many", {"queue": "default", "task": "none"}),
    ("run_now_many", {"task": "none"}),
    ("cancel_many", {"queue": "default", "task": "none"}),
    ("cancel_many", {"queue": "default", "key": "k"}),
    ("kill_many", {"job_ids": [1, 2, 3]}),
    ("delete_many", {"state": "dead", "queue": "none"}),
    ("delete_many", {"state": "succeeded", "task": "none"}),
    ("retry_many", {"state": "cancelled", "task": "none"}),
]

WATCHED = {"jobs", "idle_workers", "lanes", "heads", "horizons", "maintenance_runs", "history", "dedupe_keys"}


@dataclass
class Node:
    kind: str
    relation: str | None
    index: str | None
    condition: str
    rows: float
    removed: float
    parents: tuple[str, ...]


class Explained:
    """A connection whose statements, those inside functions too, come with their plans."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn
        try:
            conn.execute("load 'auto_explain'")
        except psycopg.Error as error:
            pytest.skip(f"auto_explain cannot be loaded: {error}")
        self._plans: list[dict[str, Any]] = []
        conn.add_notice_handler(self._notice)
        for name, setting in {
            "log_level": "notice",
            "log_format": "json",
            "log_nested_statements": "on",
            "log_analyze": "on",
            "log_timing": "off",
            "log_min_duration": "0",
        }.items():
            conn.execute(f"set auto_explain.{name} = '{setting}'".encode())
        conn.execute("set jit = on")

    def nodes(self, run: Callable[[psycopg.Connection], object]) -> list[Node]:
        self._plans.clear()
        run(self.conn)
        assert self._plans, "auto_explain said nothing"
        assert [plan for plan in self._plans if "JIT" in plan] == []
        return [node for plan in self._plans for node in _flatten(plan["Plan"], ())]

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        text = notice.message_primary or ""
        if "plan:" in text:
            self._plans.append(json.loads(text.partition("plan:")[2]))


def _flatten(plan: dict[str, Any], parents: tuple[str, ...]) -> Iterator[Node]:
    yield Node(
        plan["Node Type"],
        plan.get("Relation Name"),
        plan.get("Index Name"),
        plan.get("Index Cond", plan.get("TID Cond", "")),
        plan.get("Actual Rows", 0) * plan.get("Actual Loops", 0),
        plan.get("Rows Removed by Filter", 0) * plan.get("Actual Loops", 0),
        parents,
    )
    for child in plan.get("Plans", []):
        yield from _flatten(child, (*parents, plan["Node Type"]))


def use_everything(conn: psycopg.Connection) -> None:
    """Call each function a few times, so that its plans are cached."""
    for _ in range(7):
        enqueue(conn)
        enqueue_many(conn, 2)
        enqueue_many(conn, 4)
        held = reserve(conn, 7)
        table(conn, "extend", *pairs(held), "30 s", [True] * len(held))
        report(conn, held[0])
        call(conn, "complete", held[0].id, held[0].reservation)
        column(conn, "complete_many", *pairs(held[1:3]))
        operate_and_give_back(conn, held[3:])
        column(conn, "complete_many", *pairs(reserve(conn, 10)))
        table(conn, "idle", "w")
        call(conn, "awake", "w")
        maintain(conn)
        count_executing(conn)
        dedupe(conn)
        for name, filters in BULK:
            table(conn, name, **filters)
        table(conn, "purge_queue", "none")
        [explained] = enqueue_many(conn, 1)
        table(conn, "explain", explained)
        call(conn, "delete", explained)


def dedupe(conn: psycopg.Connection) -> None:
    """Each way that an enqueue with a dedupe key can take, and each that its job can end and come back."""
    jobs = [{"task": "t", "dedupe": f"d{n}", "delay": "1 h"} for n in range(5)]
    call(conn, "enqueue_batch", [Jsonb(each) for each in [*jobs, *jobs, {"task": "t"}, {"task": "u", "tags": ["x"]}]])
    for mode in ("skip", "merge", "replace", "debounce"):
        job_id = enqueue(conn, dedupe="d1", on_conflict=mode, delay="2 h")
    call(conn, "cancel", job_id)
    call(conn, "retry", job_id)
    call(conn, "cancel", job_id)
    other = enqueue(conn, dedupe="d1", dedupe_for="1 us", delay="1 h")
    assert enqueue(conn, dedupe="d1", delay="1 h") > other
    call(conn, "retry", job_id)
    for each in conn.execute("select id from pgqueue.jobs where dedupe is not null").fetchall():
        call(conn, "delete", each[0])
    call(conn, "delete", job_id)


def report(conn: psycopg.Connection, held: Any) -> None:
    column(conn, "started", [held.id], [held.reservation])
    call(conn, "progress", held.id, held.reservation, 1, 2, "half")
    call(conn, "hold", held.id, held.reservation)
    table(conn, "outcome", held.id)
    call(conn, "is_wanted", "w", ["default", "other"])


def operate_and_give_back(conn: psycopg.Connection, held: list[Any]) -> None:
    failed, snoozed, released, dead = held
    call(conn, "fail", failed.id, failed.reservation)
    call(conn, "retry", failed.id)
    call(conn, "snooze", snoozed.id, snoozed.reservation, "0")
    column(conn, "release", *pairs([released]))
    call(conn, "fail", dead.id, dead.reservation, retry=False)
    call(conn, "retry", dead.id)
    call(conn, "cancel", dead.id)
    call(conn, "delete", dead.id)


@pytest.fixture(scope="module", params=["cached on empty tables", "made on full tables, analysed"])
def explained(request: pytest.FixtureRequest, cloner: Cloner) -> Iterator[Explained]:
    # As migrate leaves it: the template of the other tests has been vacuumed.
    database = cloner.migrated(partitions=True)
    conn = database.connect()
    cached = request.param == "cached on empty tables"
    conn.execute("alter table pgqueue.jobs set (autovacuum_enabled = off)")
    enqueue(conn)
    column(conn, "complete_many", *pairs(reserve(conn)))
    if cached:
        use_everything(conn)
    conn.execute(FILL.encode())
    if not cached:
        conn.execute("analyze")
    yield Explained(conn)
    cloner.drop(database)


def check(nodes: list[Node]) -> None:
    """No scan of a table that may be large, and no index read for more than it gives."""
    for node in nodes:
        if node.kind == "Seq Scan" and node.parents[:1] == ("ModifyTable",) and node.relation != "jobs":
            continue  # clearing away, once a minute
        assert not (node.relation in WATCHED and node.kind == "Seq Scan"), node
        assert not (node.relation == "jobs" and node.kind == "Bitmap Heap Scan" and node.rows > 100), node
        if node.relation == "jobs" and node.index not in (None, "jobs_pkey"):
            assert node.removed <= 10, node
            assert node.rows <= 1000, node


def of_ready_index(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if node.index == "jobs_ready"]


@pytest.mark.covers("D5")
def test_reserve_reads_its_lane_by_a_range_of_the_ready_index(explained: Explained) -> None:
    nodes = explained.nodes(lambda conn: reserve(conn, 100))
    check(nodes)
    reads = of_ready_index(nodes)
    assert reads
    for node in reads:
        for part in ("queue =", "priority =", "resumed =", "ROW(ready_at, id) >="):
            assert part in node.condition, node
        assert "ready_at <" in node.condition or "ROW(ready_at, id) <" in node.condition, node
        assert node.parents[-1] != "Sort"
    assert max(node.rows for node in reads) == 100
    # A few for the heads of their lanes, and each to claim it.
    sampled, claimed = [node.rows for node in nodes if node.kind == "Tid Scan" and node.rows]
    assert sampled <= 3
    assert claimed == 100


def test_a_claim_asks_for_the_options_of_its_tasks_by_their_index(explained: Explained) -> None:
    nodes = explained.nodes(lambda conn: reserve(conn, 10))
    check(nodes)
    assert {node.index for node in nodes if node.relation == "tasks"} == {"tasks_pkey"}


def test_a_claim_returns_its_jobs_in_serving_order_without_a_sort(explained: Explained) -> None:
    conn = explained.conn
    with conn.transaction(force_rollback=True):
        job_ids = enqueue_many(conn, 50, queue="reversed")
        conn.execute("update pgqueue.jobs set ready_at = ready_at - id * interval '1 ms' where queue = 'reversed'")
        claimed: list[int] = []
        nodes = explained.nodes(lambda conn: claimed.extend(ids(reserve(conn, 50, queues=["reversed"]))))
    assert claimed == job_ids[::-1]
    [taken] = [node for node in nodes if node.relation == "jobs" and node.kind == "ModifyTable"]
    assert "Sort" not in taken.parents


def test_a_claim_planned_on_empty_vacuumed_tables_reads_no_more(cloner: Cloner) -> None:
    """A vacuum that found nothing records that the table is empty, and then any scan seems cheap."""
    database = cloner.migrated()
    conn = database.connect()
    conn.execute("alter table pgqueue.jobs set (autovacuum_enabled = off)")
    conn.execute("vacuum pgqueue.jobs")
    for _ in range(3):
        enqueue_many(conn, 7)
        column(conn, "complete_many", *pairs(reserve(conn, 5)))
        conn.execute("delete from pgqueue.jobs")
    conn.execute(FILL.encode())
    nodes = Explained(conn).nodes(lambda conn: reserve(conn, 100))
    check(nodes)
    assert max(node.rows for node in of_ready_index(nodes)) == 100
    cloner.drop(database)


@pytest.fixture
def fair(explained: Explained) -> Iterator[Explained]:
    """With thirty tenants in a fair queue, until the test is over."""
    conn = explained.conn
    with conn.transaction(force_rollback=True):
        call(conn, "configure_queue", "fair", fair_by="limit_key")
        for number in range(30):
            enqueue_many(conn, 5, queue="fair", limit_key=f"t{number}")
        reserve(conn, 1, "w", queues=["fair"])
        # From the first lane on.
        conn.execute(
            "insert into pgqueue.turns (worker, queue, priority, lane_key, credit, at)"
            " values ('w', 'fair', 0, '', 0, clock_timestamp())"
        )
        yield explained


def test_a_claim_of_a_fair_queue_probes_the_lane_of_each_job_and_no_other(fair: Explained) -> None:
    nodes = fair.nodes(lambda conn: reserve(conn, 10, "w", queues=["fair"]))
    check(nodes)
    [read] = [node for node in nodes if node.index == "jobs_in_lanes" and "LockRows" in node.parents]
    assert read.rows == 10
    for part in ("queue =", "priority =", "lane_key =", "ROW(ready_at, id) >=", "ready_at <"):
        assert part in read.condition, read
    assert sum(node.rows for node in nodes if node.index == "tenant_lanes_by_name") <= 11
    # Where it ended is written once; in one claim of sixteen the rows of before are deleted.
    assert len([node for node in nodes if node.relation == "turns" and node.kind == "ModifyTable"]) in (1, 2)


@pytest.mark.parametrize("queue", ["default", "fair"])
def test_a_claim_that_is_full_asks_for_no_lapsed_lease(fair: Explained, queue: str) -> None:
    nodes = fair.nodes(lambda conn: reserve(conn, 10, "w", queues=[queue]))
    # The head of leases may move: that reads them by another statement.
    assert [node for node in nodes if node.index == "jobs_lease" and "Nested Loop" in node.parents] == []


@pytest.mark.parametrize("call", ["complete_many", "fail_many"])
def test_ends_beside_an_old_snapshot_read_their_own_rows(
    call: str, database: Database, conn: psycopg.Connection
) -> None:
    """A vacuum finds the table all but empty, while its index has every entry that the snapshot may still see."""
    conn.execute("alter table pgqueue.jobs set (autovacuum_enabled = off)")
    conn.execute("vacuum pgqueue.jobs")

    def ends(many: str, count: int = 10) -> int:
        enqueue_many(conn, count)
        ids, reservations = pairs(reserve(conn, count))
        ending = (
            f"explain (analyze, buffers, format json) select * from pgqueue.{many}(array{ids}, array{reservations})"
        )
        plan = value(conn, ending)[0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    old = database.connect()
    old.execute("begin isolation level repeatable read")
    old.execute("select txid_current(), count(*) from pgqueue.jobs")
    ends(call)
    few = ends(call)
    for _ in range(20):
        ends("complete_many", 100)
    conn.execute("vacuum pgqueue.jobs")
    # Its plans are made now.
    conn.execute("discard plans")
    ends(call)
    assert ends(call) < few + 80


def test_a_short_claim_beside_an_old_snapshot_walks_no_waits_and_notes_that_are_gone(
    database: Database, conn: psycopg.Connection
) -> None:
    conn.execute("alter table pgqueue.limit_waits set (autovacuum_enabled = off)")
    conn.execute("alter table pgqueue.key_notes set (autovacuum_enabled = off)")
    maintain(conn)
    few = blocks(conn, "pgqueue.reserve('w', 10)")
    old = database.connect()
    old.execute("begin isolation level repeatable read")
    old.execute("select txid_current(), count(*) from pgqueue.jobs")
    conn.execute(
        "insert into pgqueue.limit_waits (name, next_at)"
        " select 'task:' || n % 1000, clock_timestamp() - '11 s'::interval - n * '1 ms'::interval"
        " from generate_series(1, 50000) n"
    )
    conn.execute("insert into pgqueue.key_notes (queue, key) select 'q', n from generate_series(1, 50000) n")
    conn.execute("delete from pgqueue.limit_waits")
    conn.execute("delete from pgqueue.key_notes")
    maintain(conn)
    assert blocks(conn, "pgqueue.reserve('w', 10)") < few + 100
    # Also where something is due.
    for most in (100_000, 500):
        conn.execute("insert into pgqueue.limit_waits (name, next_at) values ('task:7', clock_timestamp())")
        conn.execute("insert into pgqueue.key_notes (queue, key) values ('q', 'k')")
        assert blocks(conn, "pgqueue.reserve('w', 10)", plans_first=False) < most
        left = "select (select count(*) from pgqueue.limit_waits) + (select count(*) from pgqueue.key_notes)"
        assert value(conn, left) == 0


def test_reserve_of_named_queues_in_strict_order_does_so_too(explained: Explained) -> None:
    nodes = explained.nodes(lambda conn: reserve(conn, 5, queues=["a", "default"], strategy="strict"))
    check(nodes)
    # Less are read for the first job of each lane, and to move a head, as a claim of five does in a tenth of the calls.
    assert max(node.rows for node in of_ready_index(nodes)) == 5


def test_jobs_of_the_future_are_not_touched(explained: Explained) -> None:
    def nothing_due(conn: psycopg.Connection) -> None:
        conn.execute("begin")
        conn.execute(
            "update pgqueue.jobs set ready_at = ready_at + '1 day' where state = 'waiting' and ready_at < now()"
        )
        conn.execute("savepoint s")

    explained.conn.execute("set auto_explain.log_min_duration = -1")
    nothing_due(explained.conn)
    explained.conn.execute("set auto_explain.log_min_duration = 0")
    nodes = explained.nodes(lambda conn: reserve(conn, 100))
    explained.conn.execute("rollback")
    explained.conn.execute("set auto_explain.log_min_duration = 0")
    check(nodes)
    # A claim now and then moves a head, and looks at the first job of its lane for that.
    assert sum(node.rows for node in of_ready_index(nodes)) <= 1


@pytest.mark.covers("D5")
def test_enqueue_reads_no_jobs_and_asks_for_idle_workers_by_a_range(explained: Explained) -> None:
    for enqueueing in (enqueue, lambda conn: enqueue_many(conn, 50)):
        nodes = explained.nodes(enqueueing)
        check(nodes)
        assert [node for node in nodes if node.relation == "jobs"] == [
            node for node in nodes if node.relation == "jobs" and node.kind == "ModifyTable"
        ]
        asked = [node for node in nodes if (node.index or "").startswith("idle_workers")]
        assert asked
        for node in asked:
            assert node.index == "idle_workers_by_queue", node
            assert "until >" in node.condition
            assert node.rows + node.removed == 0


def test_dedupe_goes_by_keys_and_ids_alone(explained: Explained) -> None:
    def each_way(conn: psycopg.Connection) -> None:
        jobs = [{"task": "t", "dedupe": f"d{n}", "delay": "1 h"} for n in range(5)]
        call(conn, "enqueue_batch", [Jsonb(each) for each in [*jobs, *jobs]])
        for mode in ("skip", "merge", "replace", "debounce"):
            job_id = enqueue(conn, dedupe="d1", on_conflict=mode, delay="2 h")
        call(conn, "cancel", job_id)
        call(conn, "retry", job_id)
        call(conn, "delete", job_id)
        enqueue(conn, dedupe="x1")
        enqueue(conn, dedupe="x10")

    nodes = explained.nodes(each_way)
    check(nodes)
    assert {node.index for node in nodes if node.relation == "jobs" and node.index} == {"jobs_pkey"}
    reads = [node for node in nodes if (node.index or "").startswith("dedupe_keys")]
    assert {node.index for node in reads} == {"dedupe_keys_pkey", "dedupe_keys_by_job"}
    # A bitmap's rows include dead ones.
    assert all(node.rows <= 20 and node.removed == 0 for node in reads), reads


def test_expired_dedupe_keys_are_found_by_their_time(explained: Explained) -> None:
    nodes = explained.nodes(lambda conn: within(conn, "_run_maintenance", "pgqueue._tidy('tidy_dedupe', now(), 100)"))
    check(nodes)
    [read] = [node for node in nodes if node.index == "dedupe_keys_until"]
    assert (read.rows, read.removed) == (100, 0)
    assert "until <=" in read.condition


def test_a_batch_reads_no_jobs_and_inserts_by_one_statement(explained: Explained) -> None:
    jobs = [Jsonb({"task": "t", "args": {"n": n}}) for n in range(100)]
    nodes = explained.nodes(lambda conn: call(conn, "enqueue_batch", jobs))
    check(nodes)
    assert [node.kind for node in nodes if node.relation == "jobs"] == ["ModifyTable"]


def test_finishing_and_extending_go_by_the_primary_key(explained: Explained) -> None:
    held = reserve(explained.conn, 40)
    nodes = explained.nodes(lambda conn: table(conn, "extend", *pairs(held)))
    check(nodes)
    assert {node.index for node in nodes if node.relation == "jobs" and node.index} == {"jobs_pkey"}
    nodes = explained.nodes(lambda conn: report(conn, held[39]))
    check(nodes)
    assert {node.index for node in nodes if node.relation == "jobs" and node.index} == {"jobs_pkey"}
    assert all(node.kind != "Seq Scan" for node in nodes if (node.relation or "").startswith("history"))
    for finishing in (
        lambda conn: column(conn, "complete_many", *pairs(held[:20])),
        lambda conn: call(conn, "complete", held[20].id, held[20].reservation),
        lambda conn: column(conn, "release", *pairs(held[21:36])),
        lambda conn: operate_and_give_back(conn, held[36:]),
    ):
        nodes = explained.nodes(finishing)
        check(nodes)
        by = {node.index for node in nodes if node.relation == "jobs" and node.index}
        assert by == {"jobs_pkey"}, [node for node in nodes if node.relation == "jobs"]


def test_ends_read_and_lock_each_row_once(explained: Explained) -> None:
    held = reserve(explained.conn, 10)
    nodes = explained.nodes(lambda conn: column(conn, "complete_many", *pairs(held)))
    check(nodes)
    [read] = [node for node in nodes if node.relation == "jobs" and "Scan" in node.kind]
    assert (read.index, read.rows, read.removed) == ("jobs_pkey", 10, 0)
    assert "LockRows" not in {node.kind for node in nodes}


def test_ends_ask_how_long_a_task_is_kept_only_where_one_says_so(explained: Explained) -> None:
    conn = explained.conn
    with conn.transaction(force_rollback=True):
        held = reserve(conn, 20)
        for retention, ended in ((None, held[:10]), ("2 days", held[10:])):
            call(conn, "declare_task", "t", max_attempts=3, retention_succeeded=retention)
            nodes = explained.nodes(lambda conn, ended=ended: column(conn, "complete_many", *pairs(ended)))
            check(nodes)
            asked = sum(node.rows for node in nodes if node.relation == "tasks")
            assert asked >= 10 if retention else asked == 0
        kept = "select distinct kept_until - finished_at from pgqueue.history where id = any (%s)"
        assert value(conn, kept, [row.id for row in held[10:]]).days == 2


def test_rescue_reads_the_leases_that_lapsed_and_no_other(explained: Explained) -> None:
    explained.conn.execute("set auto_explain.log_min_duration = -1")
    [held] = reserve(explained.conn, lease="1 us")
    explained.conn.execute("set auto_explain.log_min_duration = 0")
    nodes = explained.nodes(lambda conn: within(conn, "_run_maintenance", "pgqueue._rescue(100, null)"))
    check(nodes)
    reads = [node for node in nodes if node.index == "jobs_lease"]
    assert [node.rows for node in reads] == [1]
    assert all("lease_expires_at <=" in node.condition for node in reads)
    assert held.id


def maintain_without_sample(conn: psycopg.Connection) -> None:
    """All steps but the one that counts, which has a bound of its own."""
    conn.execute(
        "insert into pgqueue.maintenance_steps (at, step, next_at, unfinished, failures)"
        " values (pgqueue._clock(), 'sample', 'infinity', false, 0)"
    )
    maintain(conn)


def test_maintenance_scans_nothing_that_grows(explained: Explained) -> None:
    check(explained.nodes(maintain_without_sample))
    check(explained.nodes(lambda conn: table(conn, "idle", "w", ["default", "other"])))
    check(explained.nodes(lambda conn: call(conn, "awake", "w")))


def test_a_sample_reads_a_bounded_number_of_rows_and_scans_no_table(explained: Explained) -> None:
    # The first one counts the queue whole, of which there are 62,000 jobs; the next one does not, for minutes.
    for is_first in (True, False):
        nodes = explained.nodes(lambda conn: within(conn, "_run_maintenance", "pgqueue._sample(pgqueue._clock())"))
        for node in nodes:
            assert node.relation not in ("jobs", "history") or node.kind != "Seq Scan", node
        assert is_first or 2_000 < sum(node.rows for node in nodes if node.relation == "jobs") <= 30_000


def test_what_executes_is_counted_by_its_index_and_no_further_than_asked(explained: Explained) -> None:
    for kind, target, index, rows in (
        ("queue", "default", "jobs_lease", 50),
        ("task", "t", "jobs_lease", 50),
        ("key", "k", "jobs_key_executing", 0),
        ("limit_key", "l", "jobs_limit_key", 0),
    ):
        explained.conn.execute("delete from pgqueue.limits")
        explained.conn.execute(
            "insert into pgqueue.limits (kind, target, max_executing) values (%s, %s, 50)", [kind, target]
        )
        nodes = explained.nodes(count_executing)
        check(nodes)
        reads = [node for node in nodes if node.relation == "jobs"]
        # One for each kind, of which the others are not run.
        assert [node.index for node in reads].count(index) >= 1
        assert {node.index for node in reads if node.rows} == ({index} if rows else set())
        assert sum(node.rows for node in reads) == rows
    explained.conn.execute("delete from pgqueue.limits")


def count_executing(conn: psycopg.Connection) -> None:
    """Asks what has no capacity for a job."""
    job = Jsonb({"queue": "default", "task": "t", "key": "k", "limit_key": "l"})
    within(conn, "explain", "pgqueue._reached_limit(jsonb_populate_record(null::pgqueue.jobs, %s), null, now())", job)


def bounded(nodes: list[Node], rows: int) -> None:
    """Nothing is scanned, and nothing is read but in the order of an index, up to a number of rows."""
    for node in nodes:
        if node.relation == "jobs" or (node.relation or "").startswith("history"):
            assert node.kind not in ("Seq Scan", "Bitmap Heap Scan"), node
            assert node.rows + node.removed <= rows, node


@pytest.mark.parametrize(("name", "filters"), BULK)
def test_a_bulk_call_reads_indexes_in_their_order_and_a_bounded_number_of_rows(
    explained: Explained, name: str, filters: dict[str, Any]
) -> None:
    nodes = explained.nodes(lambda conn: table(conn, name, **filters))
    # One more tells whether there is more.
    bounded(nodes, 50_001)
    read = {node.index for node in nodes if node.relation == "jobs" and node.rows > 10}
    if "key" in filters or "job_ids" in filters or name in ("delete_many", "retry_many"):
        assert read == set()
    elif "queue" in filters:
        # The queue has too many jobs for its index.
        assert read == {"jobs_pkey", "jobs_ready"}
    else:
        assert read == {"jobs_pkey"}


def test_a_bulk_change_goes_by_the_primary_key(explained: Explained) -> None:
    explained.conn.execute("set auto_explain.log_min_duration = -1")
    job_ids = enqueue_many(explained.conn, 300, queue="bulk", delay="1 h")
    explained.conn.execute("set auto_explain.log_min_duration = 0")
    for name, filters in (
        ("run_now_many", {"job_ids": job_ids}),
        ("kill_many", {"job_ids": job_ids[:200]}),
        ("delete_many", {"job_ids": job_ids[200:]}),
    ):
        nodes = explained.nodes(lambda conn, name=name, filters=filters: table(conn, name, **filters))
        bounded(nodes, 300)
        assert {node.index for node in nodes if node.relation == "jobs" and node.index and node.rows} == {"jobs_pkey"}
    for name in ("retry_many", "kill_many", "delete_many"):
        more = {"state": "dead"} if name == "delete_many" else {}
        nodes = explained.nodes(lambda conn, name=name, more=more: table(conn, name, job_ids=job_ids[:200], **more))
        bounded(nodes, 300)


def test_explain_asks_its_questions_by_index(explained: Explained) -> None:
    for job_id in (
        call(explained.conn, "enqueue", "t"),
        value(explained.conn, "select id from pgqueue.jobs where state = 'executing' limit 1"),
        call(explained.conn, "enqueue", "t", delay="1 h"),
    ):
        explained.conn.execute("update pgqueue.jobs set key = 'k' || id where id = %s", [job_id])
        nodes = explained.nodes(lambda conn, job_id=job_id: table(conn, "explain", job_id))
        bounded(nodes, 1000)
