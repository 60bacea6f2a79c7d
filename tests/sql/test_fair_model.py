"""A fair queue beside a plain model: who waits falls not behind, and jobs start once, in the order of their tenants."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.calls import call, column, enqueue_many, pairs, reserve
from tests.databases import Database

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
