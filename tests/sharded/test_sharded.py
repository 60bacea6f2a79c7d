"""Several databases behind PL/Proxy: where a job goes, what holds on each shard, and how a shard is added."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from examples.sharded import start
from examples.sharded.app import app
from pgqueue.config import WorkerConfig
from pgqueue.errors import ConfigError
from pgqueue.schema.proxy import ROUTES, SPLIT, set_shard, shard_of
from pgqueue.worker.fleet import Fleet
from tests.calls import call, enqueue, reserve, table, value
from tests.databases import Database
from tests.facts import wait_until

pytestmark = pytest.mark.long

needs_plproxy = pytest.mark.skipif(bool(start.missing()), reason=start.missing() or "-")


@dataclass
class Sharded:
    dsn: str
    shards: list[str]
    conns: list[psycopg.Connection]
    proxy: psycopg.Connection

    def shard(self, job_id: int) -> psycopg.Connection:
        return self.conns[job_id >> 44]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-sharded-"))
    try:
        with start.server(directory / "s") as dsn:
            yield dsn
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def sharded(server: str) -> Iterator[Sharded]:
    shards = [start.make_shard(server, number) for number in range(3)]
    proxy = start.make_proxy(server, shards)
    conns = [psycopg.connect(dsn, autocommit=True) for dsn in shards]
    with psycopg.connect(proxy, autocommit=True) as conn:
        yield Sharded(server, shards, conns, conn)
    for each in conns:
        each.close()


async def drain(sharded: Sharded) -> None:
    config = WorkerConfig(until_empty=True, concurrency=8, shutdown_timeout=5.0)
    assert await Fleet(app, sharded.shards, config).run()


@needs_plproxy
def test_calls_go_to_the_shard_of_a_key_of_a_dedupe_key_and_of_an_id(sharded: Sharded) -> None:
    proxy = sharded.proxy
    by_key = {f"k{n}": {enqueue(proxy, "t", key=f"k{n}") >> 44 for _ in range(3)} for n in range(40)}
    assert all(len(shards) == 1 for shards in by_key.values())
    assert set.union(*by_key.values()) == {0, 1, 2}
    assert {enqueue(proxy, "t") >> 44 for _ in range(60)} == {0, 1, 2}
    first = [enqueue(proxy, "t", dedupe=f"d{n}") for n in range(40)]
    assert [enqueue(proxy, "t", dedupe=f"d{n}") for n in range(40)] == first
    assert {job_id >> 44 for job_id in first} == {0, 1, 2}
    for job_id in first[:9]:
        assert value(sharded.shard(job_id), "select 1 from pgqueue.jobs where id = %s", job_id) == 1
        [found] = table(proxy, "outcome", job_id)
        assert found.state == "waiting"
        assert call(proxy, "explain", job_id) == job_id
        assert call(proxy, "cancel", job_id) == "cancelled"
        assert table(proxy, "outcome", job_id)[0].state == "cancelled"
        assert call(proxy, "retry", job_id) is True
        assert call(proxy, "delete", job_id) is True
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="no shard has the id"):
        call(proxy, "cancel", (3 << 44) + 1)


@needs_plproxy
def test_an_error_of_a_shard_comes_with_its_code_and_hint(sharded: Sharded) -> None:
    with pytest.raises(psycopg.Error) as of_proxy:
        enqueue(sharded.proxy, "", key="k")
    with pytest.raises(psycopg.Error) as of_shard:
        enqueue(sharded.conns[0], "", key="k")
    assert of_proxy.value.sqlstate == of_shard.value.sqlstate
    assert of_shard.value.diag.message_primary in str(of_proxy.value)
    assert of_proxy.value.diag.message_hint == f"Remote hint: {of_shard.value.diag.message_hint}"


@needs_plproxy
def test_a_batch_is_split_and_its_answers_stand_in_the_order_of_its_jobs(sharded: Sharded) -> None:
    jobs = [Jsonb({"task": "t", "key": f"k{n}", "args": {"n": n}}) for n in range(50)]
    jobs[7] = Jsonb({"task": "t", "kee": 1})
    jobs[9] = Jsonb({"task": "t"})
    rows = {row.ord: row for row in table(sharded.proxy, "enqueue_batch", jobs)}
    assert sorted(rows) == list(range(1, 51))
    assert rows[8].outcome == "error"
    for place, row in rows.items():
        if place != 8:
            args = value(sharded.shard(row.job_id), "select args from pgqueue.jobs where id = %s", row.job_id)
            assert args == ({} if place == 10 else {"n": place - 1})
    assert {row.job_id >> 44 for row in rows.values() if row.job_id} == {0, 1, 2}
    # Jobs that name each other stay together.
    family = [Jsonb({"task": "a", "ref": "a"}), Jsonb({"task": "b", "depends_on": ["a"]})]
    parent, child = (row.job_id for row in table(sharded.proxy, "enqueue_batch", family))
    assert parent >> 44 == child >> 44
    assert [row.id for row in table(sharded.proxy, "parents", child)] == [parent]
    ids = [row.job_id for row in rows.values() if row.job_id]
    many = sharded.proxy.execute(
        "select count(*) from pgqueue.enqueue_many('t', array_fill('{}'::jsonb, '{100}'), key => 'k1')"
    ).fetchone()
    assert many == (100,)
    assert call(sharded.proxy, "depth") >= len(ids)


@needs_plproxy
def test_a_child_goes_to_the_shard_of_its_parent_and_what_spans_shards_is_refused(sharded: Sharded) -> None:
    proxy = sharded.proxy
    by_shard = {job_id >> 44: job_id for job_id in (enqueue(proxy, "t", key=f"k{n}") for n in range(40))}
    child = enqueue(proxy, "child", depends_on=[by_shard[2]])
    assert child >> 44 == 2
    for options in (
        {"depends_on": [by_shard[0], by_shard[1]]},
        {"depends_on": [by_shard[0]], "key": of_shard(proxy, 1)},
    ):
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="on different shards"):
            enqueue(proxy, "child", **options)
    group = call(proxy, "open_group", "g")
    member = enqueue(proxy, "t", group_id=group)
    assert member >> 44 == group >> 44
    assert call(proxy, "close_group", group) is True
    assert [row.total for row in table(proxy, "group_progress", group)] == [1]


def of_shard(proxy: psycopg.Connection, shard: int) -> str:
    return next(f"x{n}" for n in range(1000) if value(proxy, "select pgqueue_proxy.of_key(%s)", f"x{n}") == shard)


@needs_plproxy
async def test_jobs_of_a_key_run_in_order_and_a_limit_holds_on_each_shard(sharded: Sharded) -> None:
    for order in range(120):
        enqueue(sharded.proxy, "pay", {"order": order}, key=f"customer {order % 15}")
    for conn in sharded.conns:
        call(conn, "set_limit", "task", "pay", max_executing=2)
    first = [len(reserve(conn, 50)) for conn in sharded.conns]
    assert first == [2, 2, 2]
    for conn in sharded.conns:
        conn.execute(
            "select pgqueue.release(array_agg(id), array_agg(reservation)) from pgqueue.jobs where state = 'executing'"
        )
    await drain(sharded)
    paid = [row for conn in sharded.conns for row in conn.execute("select customer, paid_order from paid order by at")]
    assert sorted(order for _, order in paid) == list(range(120))
    for customer in {customer for customer, _ in paid}:
        orders = [order for who, order in paid if who == customer]
        assert orders == sorted(orders)


@needs_plproxy
async def test_a_shard_is_added_and_no_key_is_on_two_while_its_jobs_live(sharded: Sharded) -> None:
    proxy = sharded.proxy
    keys = [f"k{n}" for n in range(200)]
    before = {key: enqueue(proxy, "pay", {"order": n}, key=key) >> 44 for n, key in enumerate(keys)}
    sharded.shards.append(start.make_shard(sharded.dsn, 3))
    sharded.conns.append(psycopg.connect(sharded.shards[3], autocommit=True))
    start.put_before(proxy.info.dsn, sharded.shards)
    # Keys stay where they are, other jobs go to the new one as well, and old ids still lead to their shards.
    assert {key: value(proxy, "select pgqueue_proxy.of_key(%s)", key) for key in keys} == before
    assert 3 in {enqueue(proxy, "remind") >> 44 for _ in range(80)}
    # A bucket with a live job stays.
    proxy.execute("select * from pgqueue_proxy.move_buckets(3)")
    assert {key: value(proxy, "select pgqueue_proxy.of_key(%s)", key) for key in keys} == before
    assert value(proxy, "select count(*) from pgqueue_proxy.buckets where shard = 3") > 0
    for n, key in enumerate(keys[:50]):
        assert enqueue(proxy, "pay", {"order": 1000 + n}, key=key) >> 44 == before[key]
    await drain(sharded)
    _, left = proxy.execute("select moved, left_over from pgqueue_proxy.move_buckets(3)").fetchone() or (0, 0)
    assert left == 0
    assert value(proxy, "select count(*) from pgqueue_proxy.buckets where shard = 3") == 256
    after = {key: enqueue(proxy, "pay", {"order": 2000 + n}, key=key) >> 44 for n, key in enumerate(keys)}
    assert 3 in after.values()
    assert all(after[key] in (before[key], 3) for key in keys)
    await drain(sharded)
    assert sum(value(conn, "select count(*) from paid") for conn in sharded.conns) == 450


@needs_plproxy
def test_a_move_waits_for_the_enqueue_that_is_under_way(sharded: Sharded) -> None:
    sharded.shards.append(start.make_shard(sharded.dsn, 3))
    start.put_before(sharded.proxy.info.dsn, sharded.shards)
    with psycopg.connect(sharded.proxy.info.dsn) as producer:
        job_id = enqueue(producer, "t", key="k")
        bucket = value(producer, "select pgqueue_proxy.bucket_of('k')")
        with psycopg.connect(sharded.proxy.info.dsn, autocommit=True) as mover:
            wait_until(lambda: value(sharded.shard(job_id), "select 1 from pgqueue.jobs where id = %s", job_id))
            # All but this one bucket are free.
            mover.execute("set statement_timeout = '20s'")
            wanted = value(mover, "select shard from pgqueue_proxy.buckets where bucket = %s", bucket)
            assert wanted == job_id >> 44
            held = value(mover, "select pg_try_advisory_xact_lock(1886413169, %s)", bucket)
            assert held is False
        producer.rollback()
    # The shard has committed at once: PL/Proxy's calls are no part of the caller's transaction.
    assert value(sharded.shard(job_id), "select 1 from pgqueue.jobs where id = %s", job_id) == 1


@needs_plproxy
def test_a_shard_at_the_wrong_place_and_a_second_number_are_refused(sharded: Sharded) -> None:
    with pytest.raises(ConfigError, match="is shard 1, and stands at place 0"):
        start.put_before(sharded.proxy.info.dsn, [sharded.shards[1]])
    enqueue(sharded.conns[1])
    with pytest.raises(ConfigError, match="is shard 1 already"):
        set_shard(sharded.shards[1], 2)


def test_a_queue_alone_is_shard_0_and_ids_of_another_begin_with_its_number(database: Database) -> None:
    assert shard_of(database.dsn) == 0
    set_shard(database.dsn, 0)
    set_shard(database.dsn, 5)
    assert shard_of(database.dsn) == 5
    with database.connect() as conn:
        assert enqueue(conn) == (5 << 44) + 1
        assert 511 << 44 < 2**53
    set_shard(database.dsn, 5)
    with pytest.raises(ConfigError, match="shard 5 already"):
        set_shard(database.dsn, 0)
    with pytest.raises(ConfigError, match="from 0 to 511"):
        set_shard(database.dsn, 512)


# Why a producer's function is not forwarded.
NOT_ROUTED = {
    "stage": "a temporary table of the session; copy to each shard, or use enqueue_batch",
    "enqueue_staged": "see stage",
    "enqueue_all": "jobs that name each other are of one shard; call it there",
    "wanted": "an autoscaler asks each shard for its workers",
}


def test_every_function_of_a_producer_is_routed_or_has_a_reason(conn: psycopg.Connection) -> None:
    conn.execute("create role sharded_producer")
    try:
        call(conn, "grant_access", "producer", "sharded_producer")
        producers = {
            row[0]
            for row in conn.execute(
                "select proname::text from pg_proc where pronamespace = 'pgqueue'::regnamespace and proname !~ '^_'"
                " and has_function_privilege('sharded_producer', oid, 'execute')"
            )
        }
    finally:
        call(conn, "revoke_access", "producer", "sharded_producer")
        conn.execute("drop owned by sharded_producer")
        conn.execute("drop role sharded_producer")
    assert producers - ROUTES.keys() - SPLIT - NOT_ROUTED.keys() == set()
    assert not ROUTES.keys() & SPLIT


@needs_plproxy
@pytest.mark.timeout(180)
def test_the_one_command_of_the_example_runs_every_job(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.sharded.start"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    ended = re.findall(r"shard \d: (\d+) jobs ended, (\d+) customers", ran.stdout)
    assert (sum(int(jobs) for jobs, _ in ended), sum(int(customers) for _, customers in ended)) == (90, 12)
    assert len(ended) == 3
