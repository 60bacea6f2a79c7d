"""A fair queue beside a plain model: who waits falls not behind, and jobs start once, in the order of their tenants.

The second model adds what stops tenants (limits, pauses, throttles, max_share) and switches between fair and plain. It
knows of each tenant how many jobs may start at the moment: that many start, and no more. PGQUEUE_MODEL=500 runs for
longer.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from datetime import datetime, timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, column, enqueue_many, maintain, pairs, reserve, value
from tests.databases import Database
from tests.sql.test_model import run

TENANTS = "abcde"
TABLES = (
    "jobs, history, lanes, tenant_lanes, turns, shares, queues, pauses, heads, horizons, limits, limit_starts,"
    " limit_levels, limit_waits, maintenance_runs"
)
# Slots of the worker.
SLOTS = 10
RULES = st.sampled_from([("limit_key", each) for each in ("a", "b", "c", "*")] + [("task", "t"), ("queue", "default")])

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.sampled_from("abcde"), st.integers(1, 30)),
        st.tuples(st.just("claim"), st.just(""), st.integers(1, 25)),
    ),
    min_size=5,
    max_size=25,
)
_shares = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 4), max_size=3)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_steps, shares=_shares)
def test_no_tenant_that_waits_falls_behind_another(
    database: Database, steps: list[tuple[str, str, int]], shares: dict[str, int]
) -> None:
    conn = database.connect()
    conn.execute("delete from pgqueue.jobs; delete from pgqueue.shares; delete from pgqueue.turns")
    call(conn, "configure_queue", "default", fair_by="limit_key")
    for tenant, share in shares.items():
        call(conn, "set_share", tenant, share)
    of: dict[int, str] = {}
    waiting: dict[str, list[int]] = defaultdict(list)
    # What each has started since both of a pair have waited, in rounds.
    rounds: dict[tuple[str, str], float] = {}
    for what, tenant, number in steps:
        if what == "enqueue":
            for job_id in enqueue_many(conn, number, limit_key=tenant):
                of[job_id] = tenant
                waiting[tenant].append(job_id)
            continue
        before = {each for each in waiting if waiting[each]}
        rows = reserve(conn, number)
        assert len(rows) == min(number, sum(map(len, waiting.values())))
        started: dict[str, int] = defaultdict(int)
        for row in rows:
            each = of[row.id]
            started[each] += 1
            assert waiting[each].pop(0) == row.id
        column(conn, "complete_many", *pairs(rows))
        both = {each for each in before if waiting[each]}
        for one in "abcde":
            for other in "abcde":
                if one not in both or other not in both:
                    rounds.pop((one, other), None)
                    continue
                ahead = started[one] / shares.get(one, 1) - started[other] / shares.get(other, 1)
                rounds[one, other] = rounds.get((one, other), 0) + ahead
                assert abs(rounds[one, other]) <= 2
    conn.close()


class Sharing(RuleBasedStateMachine):
    """One worker, one queue, tenants a to e and jobs without a limit_key, which are the tenant ""."""

    def __init__(self, conn: psycopg.Connection, clock: Clock) -> None:
        super().__init__()
        self.conn = conn
        self.clock = clock
        self.is_fair = True
        self.max_share = 1.0
        self.shares: dict[str, int] = {}
        self.limits: dict[str, int] = {}
        # What stands still, by kind, target and source, until when.
        self.still: dict[tuple[str, str, str], datetime] = {}
        self.of: dict[int, str] = {}
        self.waiting: dict[str, list[int]] = {each: [] for each in ("", *TENANTS)}
        # Jobs that waited in a plain queue, or may have been blocked by a rule of their task: they keep no order.
        self.mixed: set[int] = set()
        self.held: list[Row] = []
        # What each has started since both of a pair have waited, in rounds.
        self.rounds: dict[tuple[str, str], float] = {}

    @initialize()
    def empty(self) -> None:
        self.conn.execute(f"truncate {', '.join(f'pgqueue.{name}' for name in TABLES.split(', '))}".encode())
        # Not back to where the last example began: the clock never steps back.
        self.let_pass(3600)
        call(self.conn, "configure_queue", "default", fair_by="limit_key")

    @rule(tenant=st.sampled_from(["", *TENANTS]), number=st.integers(1, 30))
    def enqueue(self, tenant: str, number: int) -> None:
        made = enqueue_many(self.conn, number, limit_key=tenant or None)
        self.of |= dict.fromkeys(made, tenant)
        self.waiting[tenant] += made
        if not self.is_fair:
            self.mixed |= set(made)

    @rule(number=st.integers(1, 25))
    def claim_and_complete(self, number: int) -> None:
        rows = self.claim(number)
        self.held = [row for row in self.held if row not in rows]
        assert column(self.conn, "complete_many", *pairs(rows)) == []

    @rule(number=st.integers(1, SLOTS))
    def claim_and_hold(self, number: int) -> None:
        self.claim(number)
        self.rounds.clear()

    @precondition(lambda self: self.held)
    @rule(number=st.integers(1, 3 * SLOTS))
    def complete(self, number: int) -> None:
        ended, self.held = self.held[:number], self.held[number:]
        assert column(self.conn, "complete_many", *pairs(ended)) == []
        # What tenants execute is noted, for two seconds, and decides who comes first.
        self.let_pass(3)

    @rule(tenant=st.sampled_from(TENANTS), share=st.integers(1, 4))
    def set_share(self, tenant: str, share: int) -> None:
        call(self.conn, "set_share", tenant, share)
        self.shares[tenant] = share
        self.rounds.clear()

    @rule(of=st.sampled_from(["a", "b", "*"]), most=st.integers(0, 4))
    def set_limit(self, of: str, most: int) -> None:
        call(self.conn, "set_limit", "limit_key", of, max_executing=most)
        self.limits[of] = most

    @precondition(lambda self: self.limits)
    @rule()
    def drop_limit(self) -> None:
        of, _ = self.limits.popitem()
        assert call(self.conn, "drop_limit", "limit_key", of) is True

    @rule(of=RULES)
    def pause(self, of: tuple[str, str]) -> None:
        call(self.conn, "pause", *of)
        self.still[*of, "operator"] = datetime.max.replace(tzinfo=self.clock.now().tzinfo)

    @rule(of=RULES, seconds=st.integers(1, 90))
    def throttle(self, of: tuple[str, str], seconds: int) -> None:
        if of[0] != "queue":
            call(self.conn, "throttle", *of, timedelta(seconds=seconds))
            until = self.clock.now() + timedelta(seconds=seconds)
            self.still[*of, "throttle"] = max(until, self.still.get((*of, "throttle"), until))

    @precondition(lambda self: self.still)
    @rule()
    def resume(self) -> None:
        name, until = self.still.popitem()
        assert call(self.conn, "resume", *name) is (until > self.clock.now())

    @rule(seconds=st.sampled_from([1, 20, 100]))
    def pass_time(self, seconds: int) -> None:
        self.let_pass(seconds)

    def let_pass(self, seconds: int) -> None:
        self.clock.advance(timedelta(seconds=seconds))
        call(self.conn, "hello", "w", None, Jsonb({"concurrency": SLOTS}))
        maintain(self.conn)
        self.rounds.clear()

    @rule(is_fair=st.booleans())
    def switch(self, is_fair: bool) -> None:
        if is_fair == self.is_fair:
            return
        call(
            self.conn, "configure_queue", "default", **({"fair_by": "limit_key"} if is_fair else {"reset": ["fair_by"]})
        )
        self.is_fair = is_fair
        self.mixed |= {job_id for each in self.waiting.values() for job_id in each}
        self.rounds.clear()

    @rule(max_share=st.sampled_from([0.2, 0.5, 0.9, 1.0]))
    def set_max_share(self, max_share: float) -> None:
        call(self.conn, "configure_queue", "default", max_share=max_share)
        self.max_share = max_share

    def stands_still(self, tenant: str) -> bool:
        now = self.clock.now()
        targets = {("queue", "default"), ("task", "t")} | (
            {("limit_key", tenant), ("limit_key", "*")} if tenant else set()
        )
        return any(name[:2] in targets and until > now for name, until in self.still.items())

    def limit(self, tenant: str) -> int | None:
        return self.limits.get(tenant, self.limits.get("*")) if tenant else None

    def room(self, tenant: str, *, with_share: bool) -> int:
        """How many jobs of a tenant may start now, by the contract."""
        if self.stands_still(tenant):
            return 0
        executing = sum(self.of[row.id] == tenant for row in self.held)
        rooms = [len(self.waiting[tenant])]
        if (most := self.limit(tenant)) is not None:
            rooms.append(most - executing)
        if with_share and self.max_share < 1:
            rooms.append(max(math.floor(self.max_share * SLOTS + 1e-9), 1) - executing)
        return max(min(rooms), 0)

    def claim(self, number: int) -> list[Row]:
        """Claim `number`, or what may start, and compare it with the model."""
        if any(kind == "task" for kind, *_ in self.still):
            self.mixed |= {job_id for each in self.waiting.values() for job_id in each}
        was_held = bool(self.held)
        is_pure = self.is_fair and not any(job_id in self.mixed for each in self.waiting.values() for job_id in each)
        free = {
            each
            for each, jobs in self.waiting.items()
            if jobs and not self.stands_still(each) and self.limit(each) is None
        }
        expected = min(number, sum(self.room(each, with_share=True) for each in self.waiting))
        rows = self.reserve(number)
        # A claim has two rounds, and more within 20 ms: on a busy machine another one goes on. In a plain queue each
        # passes what a rule blocks, and what a rule has blocked comes back with a check: of a claim that comes up
        # short, or of maintenance.
        for _ in range(20 + sum(map(len, self.waiting.values()))):
            if len(rows) >= expected:
                break
            if not is_pure:
                self.clock.advance("1 s")
                maintain(self.conn)
            rows += self.reserve(number - len(rows))
        if is_pure:
            both = {each for each in free if self.waiting[each]} if not was_held and self.max_share == 1 else set()
            self.compare(Counter(self.of[row.id] for row in rows), both)
        else:
            self.rounds.clear()
        assert len(rows) >= expected
        return rows

    def reserve(self, number: int) -> list[Row]:
        rooms = {each: self.room(each, with_share=False) for each in self.waiting}
        capped = {each: self.room(each, with_share=True) for each in self.waiting}
        rows = reserve(self.conn, number, lease="1 day")
        started = Counter(self.of[row.id] for row in rows)
        for each, jobs in started.items():
            # Nothing that is paused or throttled, and nothing beyond a limit.
            assert jobs <= rooms[each]
            if self.is_fair and not self.mixed & set(self.waiting[each]):
                assert jobs <= capped[each]
            ids = [row.id for row in rows if self.of[row.id] == each and row.id not in self.mixed]
            assert ids == [job_id for job_id in self.waiting[each] if job_id not in self.mixed][: len(ids)]
            self.waiting[each] = [job_id for job_id in self.waiting[each] if job_id not in {row.id for row in rows}]
        self.held += rows
        return rows

    def compare(self, started: Counter[str], both: set[str]) -> None:
        """Of two that wait, and that nothing stops, neither falls behind the other by more than two rounds."""
        self.rounds = {pair: ahead for pair, ahead in self.rounds.items() if set(pair) <= both}
        for one in both:
            for other in both - {one}:
                ahead = started[one] / self.shares.get(one, 1) - started[other] / self.shares.get(other, 1)
                self.rounds[one, other] = self.rounds.get((one, other), 0) + ahead
                assert abs(self.rounds[one, other]) <= 2

    def teardown(self) -> None:
        """In the end, when nothing stands still, every job that is left can be run."""
        self.conn.execute("delete from pgqueue.limits; delete from pgqueue.pauses")
        if self.held:
            column(self.conn, "complete_many", *pairs(self.held))
        left = sum(map(len, self.waiting.values()))
        for _ in range(3 * left + 20):
            rows = reserve(self.conn, 50, lease="1 day")
            column(self.conn, "complete_many", *pairs(rows))
            left -= len(rows)
            if not left:
                break
            if not rows:
                self.clock.advance("2 s")
                maintain(self.conn)
        assert (left, value(self.conn, "select count(*) from pgqueue.jobs")) == (0, 0)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_tenant_starts_as_many_jobs_as_its_rules_let_it_while_the_queue_is_switched(database: Database) -> None:
    run(database, Sharing)
