"""The checker finds what it is there to find: in logs written by hand, and in queues with a bug put in on purpose.

The bugs are put into the SQL functions of the test's own database, and the orders in which they show are forced.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

from pgqueue.errors import EventTimeout
from pgqueue.testing import Clock
from tests.calls import call, maintain, reserve_one, value
from tests.chaos.checker import (
    COMMITTED,
    GONE,
    HELD,
    LEFT,
    ROLLED_BACK,
    UNKNOWN,
    Birth,
    Effect,
    End,
    Entry,
    Evidence,
    Extension,
    Findings,
    Limit,
    Live,
    Promise,
    Run,
    Step,
    Still,
    Turn,
    Violation,
    check,
    check_key,
)
from tests.chaos.stage import Stage
from tests.facts import wait_until

# By hand. One job whose life was as it should be, and what else may be recorded of it.

JOB = 7
R1, R2 = 1_000, 2_000


def promise(outcome: str = COMMITTED, at: float = 1.0, kind: str = "t", token: str = "a") -> Promise:
    return Promise(JOB, outcome, at, kind, token)


def entry(
    n: int,
    what: str,
    reservation: int = R1,
    job: int = JOB,
    *,
    asked_at: float | None = None,
    clock: float | None = None,
    key: str | None = None,
    leader: int | None = None,
    was_executing: bool = True,
    lease_until: float | None = None,
    counted_lost: bool = False,
) -> Entry:
    """At second n of the run, unless given."""
    return Entry(
        job,
        n,
        what,
        reservation,
        float(n),
        float(n) if asked_at is None else asked_at,
        float(n) if clock is None else clock,
        "q",
        key,
        leader,
        was_executing,
        lease_until,
        counted_lost,
    )


def ran(reservation: int = R1, start: float = 2.1, end: float | None = 2.9, how: str = "ok") -> Run:
    return Run(JOB, reservation, start, end, how)


def extended(
    until: float, *, clock: float, at: float, asked_at: float | None = None, reservation: int = R1
) -> Extension:
    return Extension(JOB, reservation, until, clock, at, at if asked_at is None else asked_at)


def ended(reservation: int = R1, state: str = "succeeded", token: str = "a") -> End:
    return End(JOB, reservation, state, token, False)


WELL = [promise(), entry(2, HELD), ran(), entry(3, GONE), ended()]


def evidence(*records: object, **known: object) -> Evidence:
    """What was written down of one job, in any order."""

    def of(kind: type) -> list[object]:
        return sorted(each for each in records if isinstance(each, kind))  # type: ignore[type-var]

    return Evidence(
        promises=of(Promise),  # type: ignore[arg-type]
        ledger=of(Entry),  # type: ignore[arg-type]
        runs=of(Run),  # type: ignore[arg-type]
        effects=of(Effect),  # type: ignore[arg-type]
        ends=of(End),  # type: ignore[arg-type]
        live=of(Live),  # type: ignore[arg-type]
        extensions=of(Extension),  # type: ignore[arg-type]
        **known,  # type: ignore[arg-type]
    )


def broken(*records: object, **known: object) -> list[str]:
    """The rules that these records break."""
    return sorted(check(evidence(*records, **known)).broken)


def test_a_life_as_it_should_be_breaks_nothing() -> None:
    findings = check(evidence(*WELL))
    assert findings
    assert findings.counts["ended: succeeded"] == 1


def test_a_second_attempt_after_a_lost_lease_breaks_nothing_and_the_first_is_counted() -> None:
    findings = check(
        evidence(
            promise(),
            entry(2, HELD),
            ran(R1, 2.1, 9.0),
            entry(5, LEFT),
            entry(6, HELD, R2),
            ran(R2, 6.1, 6.2),
            entry(7, GONE, R2),
            ended(R2),
        )
    )
    assert findings
    assert findings.counts["runs that went on after their lease"] == 1


def test_a_committed_job_that_is_nowhere_is_lost() -> None:
    assert broken(promise()) == ["lost"]
    # Its id belongs to another job now, as after a failover.
    assert broken(promise(token="b"), *WELL) == ["lost"]


def test_what_a_server_has_lost_is_counted_and_nothing_else_is_excused() -> None:
    findings = check(evidence(promise(at=5.0), ran(R2, 5.0), losses=[(4.0, 6.0)]))
    assert findings
    assert findings.counts["lost with the server: jobs"] == findings.counts["lost with the server: runs"] == 1
    assert broken(promise(at=7.0), losses=[(4.0, 6.0)]) == ["lost"]
    late = ran(R2, 8.0)
    assert broken(promise(at=5.0), late, losses=[(4.0, 6.0)], lease=3.0) == []
    assert broken(promise(at=5.0), late, losses=[(4.0, 6.0)], lease=1.0) == ["unheld"]


def test_a_job_that_is_still_there_is_stuck() -> None:
    assert broken(promise(), Live(JOB, "blocked", "a")) == ["stuck"]
    assert broken(promise(), Live(JOB, "waits", "a", 5.0), losses=[(6.0, 8.0)]) == ["stuck"]
    # What it waits for went with the server.
    assert broken(promise(), Live(JOB, "waits", "a", 5.0), losses=[(4.0, 6.0)]) == []


def test_a_job_that_was_rolled_back_must_not_be_there_nor_run() -> None:
    assert broken(promise(ROLLED_BACK)) == []
    assert broken(promise(ROLLED_BACK), *WELL[1:]) == ["rolled back"]
    assert broken(promise(ROLLED_BACK), ran()) == ["rolled back", "unheld"]


def test_a_commit_that_was_never_answered_may_have_been_one_or_not() -> None:
    assert broken(promise(UNKNOWN)) == []
    assert broken(promise(UNKNOWN), *WELL[1:]) == []


def test_a_job_that_ends_twice_is_found() -> None:
    assert "ended twice" in broken(*WELL, ended())
    assert "ended twice" in broken(*WELL, entry(5, HELD, R2), entry(6, GONE, R2))


def test_history_has_a_row_for_each_that_went_and_keeps_it() -> None:
    assert "history" in broken(promise(), entry(2, HELD), ran(), entry(3, GONE))
    assert broken(promise(), ran(), entry(2, HELD), ended()) == ["history"]


def test_a_reservation_is_given_out_once_and_grows() -> None:
    assert broken(*WELL, entry(1, HELD, R2), entry(1, LEFT, R2)) == ["reservation"]
    assert broken(promise(), entry(1, HELD), entry(2, LEFT), entry(3, HELD), ran(), entry(4, GONE), ended()) == [
        "reservation"
    ]


def test_two_holders_at_a_time_are_found() -> None:
    found = broken(promise(), entry(1, HELD, R1), entry(2, HELD, R2), ran(R2, 2.1, 2.2), entry(3, GONE, R2), ended(R2))
    assert found == ["two holders"]


def test_an_end_without_the_reservation_is_found() -> None:
    # By the ledger ...
    assert "fence" in broken(promise(), entry(2, HELD, R2), ran(R1), entry(3, GONE, R1), ended(R1))
    # ... or, where the end goes by the job's own reservation, that its holder had not finished yet.
    late = [promise(), entry(1, HELD, R1), entry(2, LEFT, R1), entry(3, HELD, R2), entry(4, GONE, R2), ended(R2)]
    assert broken(*late, ran(R1, 1.1, 3.9), ran(R2, 3.1, 8.0)) == ["fence"]
    assert broken(*late, ran(R1, 1.1, 3.9), ran(R2, 3.1, None, "")) == ["fence"]
    assert broken(*late, ran(R1, 1.1, 3.9), ran(R2, 3.1, 3.5)) == []


def test_a_run_that_was_never_given_out_or_twice_is_found() -> None:
    assert broken(*WELL, ran(R2)) == ["unheld"]
    assert broken(promise(), entry(3, HELD), ran(R1, 2.0, 3.2), entry(4, GONE), ended()) == ["unheld"]
    assert broken(*WELL, ran()) == ["ran twice"]


def taken_back(lease_until: float, *more: object, end: float | None = 5.0, **known: object) -> list[str]:
    """What breaks when a job is taken back at second 3 and runs again from 4.1 to 4.5; the first run began at 2.1."""
    again = [entry(4, HELD, R2), ran(R2, 4.1, 4.5), entry(6, GONE, R2), ended(R2)]
    left = entry(3, LEFT, lease_until=lease_until, counted_lost=True)
    return broken(promise(), entry(2, HELD), ran(R1, 2.1, end), left, *again, *more, **known)


def test_a_job_that_is_given_back_while_its_handler_runs_and_its_lease_holds_is_found() -> None:
    assert taken_back(9.0) == ["given back", "two handlers"]
    # Taken back in time, but the lease would have ended before the second run.
    assert taken_back(4.0) == ["given back"]
    assert taken_back(2.9) == []
    # A reply that was lost: no handler, or one that was over.
    assert taken_back(9.0, end=2.9) == []
    assert taken_back(9.0, end=None) == []


def test_a_job_that_is_given_back_before_its_handler_begins_is_found() -> None:
    late = [promise(), entry(2, HELD), entry(3, LEFT, lease_until=5.0), ran(R1, 3.1, 3.2)]
    assert broken(*late, entry(4, HELD, R2), ran(R2, 4.1, 4.5), entry(6, GONE, R2), ended(R2)) == ["given back"]


def test_a_reservation_that_is_given_out_for_less_than_a_lease_is_found() -> None:
    rest = [ran(R1, 2.1, 2.2), entry(3, GONE), ended()]
    assert broken(promise(), entry(2, HELD, lease_until=4.0), *rest, lease=3.0) == ["lease"]
    assert broken(promise(), entry(2, HELD, lease_until=5.0), *rest, lease=3.0) == []


def test_a_lease_that_lapses_before_the_time_that_extend_reported_is_found() -> None:
    assert taken_back(2.9, extended(5.0, clock=2.5, at=2.5)) == ["given back", "lease", "two handlers"]
    # Of another reservation, or over by then.
    assert taken_back(2.9, extended(5.0, clock=2.5, at=2.5, reservation=R2)) == []
    assert taken_back(2.9, extended(2.9, clock=2.5, at=2.5)) == []
    # Reported as held though it is over.
    assert taken_back(2.9, extended(2.9, clock=2.95, at=2.95)) == ["lease"]
    # Also where no handler runs any more: its end may be on its way.
    assert taken_back(2.9, extended(5.0, clock=2.5, at=2.5), end=2.8) == ["lease"]


def test_a_claim_that_the_server_has_forgotten_may_run_beside_the_one_that_it_remembers() -> None:
    left = entry(3, LEFT, lease_until=9.0)
    records = [promise(), entry(2, HELD), ran(R1, 2.1, 9.0), left, ran(R2, 4.1, 4.5)]
    again = [entry(6, HELD, 3 * R1), ran(3 * R1, 9.1, 9.2), entry(7, GONE, 3 * R1), ended(3 * R1)]
    assert "two handlers" in broken(*records, *again, losses=[(14.0, 15.0)], lease=3.0)
    assert "two handlers" not in broken(*records, *again, losses=[(4.0, 5.0)], lease=3.0)


def test_a_lease_whose_extension_the_server_has_forgotten_may_run_beside_the_next_one() -> None:
    forgotten = [promise(), entry(2, HELD), entry(3, LEFT, lease_until=2.9, counted_lost=True), ran(R1, 4.5, 4.8)]
    following = [entry(4, HELD, R2), ran(R2, 4.1, 4.9), entry(5, LEFT, R2, lease_until=7.0)]
    again = [entry(6, HELD, 3 * R1), ran(3 * R1, 6.1, 6.2), entry(7, GONE, 3 * R1), ended(3 * R1)]
    records = [*forgotten, *following, *again]
    assert "two handlers" in broken(*records)
    assert "two handlers" in broken(*records, losses=[(14.0, 15.0)], lease=3.0)
    assert "two handlers" not in broken(*records, losses=[(2.0, 2.5)], lease=3.0)


def test_a_lease_ends_by_the_clock_also_after_a_step() -> None:
    # Set back by an hour: what was reported before is over when its seconds have passed.
    assert taken_back(2.9, extended(3602.9, clock=3602.5, at=2.5), steps=[Step(2.6, 2.7, -3600)]) == []
    # Set forth by an hour in the middle of the report, and back: the report is worth a lease.
    assert taken_back(2.9, extended(3602.9, clock=2.5, at=-0.2), steps=[Step(-0.3, -0.1, 3600)]) == []
    assert taken_back(2.9, extended(3602.9, clock=2.5, at=2.5)) == ["given back", "lease", "two handlers"]
    # Set forth between the reading of extend and that of the report.
    over = extended(5.0, clock=3602.0, at=2.5, asked_at=2.1)
    assert taken_back(2.9, over) == ["lease"]
    assert taken_back(2.9, over, steps=[Step(2.2, 2.3, 3600)]) == []
    assert taken_back(2.9, over, steps=[Step(1.0, 2.0, 3600)]) == ["lease"]
    # Moved while it was taken back, the clock is not known.
    assert taken_back(9.0, steps=[Step(2.9, 3.1, 10.0)]) == []
    assert taken_back(9.0, steps=[Step(1.0, 1.1, 10.0)]) == ["given back", "two handlers"]


def test_effects_are_there_exactly_once_under_the_reservation_that_ended_it() -> None:
    def found(*effects: Effect, state: str = "succeeded") -> list[str]:
        return broken(*WELL[:-1], ended(state=state), *effects, transactional=frozenset("t"))

    assert found(Effect(JOB, R1, None)) == []
    assert found() == ["effects"]
    assert found(Effect(JOB, R1, None), Effect(JOB, R1, None)) == ["effects"]
    assert found(Effect(JOB, R2, None)) == ["effects"]
    assert found(state="dead") == []
    assert found(Effect(JOB, R1, None), state="dead") == ["effects"]


def test_a_job_that_was_not_cancelled_must_not_end_as_cancelled() -> None:
    cancelled = [promise(), entry(3, GONE, 0, was_executing=False), ended(0, "cancelled")]
    assert broken(*cancelled) == ["cancelled"]
    assert broken(*cancelled, cancellable=frozenset("t")) == []


def key_of(
    *ledger: Entry, births: dict[int, tuple[float | None, float]] | None = None, steps: tuple[Step, ...] = ()
) -> list[str]:
    """What one key breaks. Births: when each was acknowledged, and when it was due."""
    born = [Birth("q", "k", job, *times) for job, times in (births or {}).items()]
    return [violation.rule for violation in check_key(born, ledger, steps)]


def test_two_jobs_of_a_key_must_not_be_held_at_a_time() -> None:
    assert key_of(entry(1, HELD, job=1), entry(2, GONE, job=1), entry(3, HELD, job=2), entry(4, GONE, job=2)) == []
    assert key_of(entry(1, HELD, job=2), entry(2, HELD, job=1)) == ["overlap"]
    # The payloads of one call of an accumulating task go together.
    assert key_of(entry(1, HELD, job=1, leader=1), entry(1, HELD, job=2, leader=1)) == []


def test_effects_of_a_key_must_not_overlap() -> None:
    turns = [Turn("q", "k", 1, 1), Turn("q", "k", 2, 2), Turn("q", "k", 2, 3)]
    assert check(Evidence(turns=turns[:2]))
    assert [violation.rule for violation in check(Evidence(turns=turns)).violations] == ["overlap"]


def test_a_job_must_not_be_claimed_before_an_earlier_one_that_was_committed_and_due() -> None:
    second_first = [entry(5, HELD, job=2), entry(6, GONE, job=2), entry(7, HELD, job=1), entry(8, GONE, job=1)]
    assert key_of(*second_first, births={1: (4.0, 1.0), 2: (4.0, 1.0)}) == ["order"]
    # Acknowledged only after the claim; never acknowledged; not due by the queue's clock.
    assert key_of(*second_first, births={1: (5.1, 1.0), 2: (4.0, 1.0)}) == []
    assert key_of(*second_first, births={1: (None, 1.0), 2: (4.0, 1.0)}) == []
    assert key_of(*second_first, births={1: (4.0, 5.5), 2: (4.0, 1.0)}) == []


def test_due_jobs_are_judged_by_the_clock_that_the_claim_may_have_read() -> None:
    claims = [entry(5, HELD, job=2, clock=3.0), entry(6, GONE, job=2, clock=4.0)]
    births: dict[int, tuple[float | None, float]] = {1: (1.0, 4.0), 2: (1.0, 1.0)}
    # Set back before, so that it is second 3; or just then, so that it may have been.
    assert key_of(*claims, births=births, steps=(Step(2.0, 2.1, -2.0),)) == []
    assert key_of(*claims, births={1: (1.0, 2.9), 2: (1.0, 1.0)}, steps=(Step(2.0, 2.1, -2.0),)) == ["order"]
    assert key_of(*claims, births={1: (1.0, 2.9), 2: (1.0, 1.0)}, steps=(Step(4.9, 5.1, -2.0),)) == []


def test_a_job_that_was_ever_held_keeps_its_place_until_it_is_gone() -> None:
    snoozed = [entry(1, HELD, job=1), entry(2, LEFT, job=1), entry(5, HELD, job=2), entry(6, GONE, job=2)]
    assert key_of(*snoozed, births={1: (None, 99.0), 2: (0.5, 0.5)}) == ["order"]
    gone = [entry(1, HELD, job=1), entry(2, LEFT, job=1), entry(3, GONE, 0, job=1, was_executing=False)]
    assert key_of(*gone, *snoozed[2:], births={1: (None, 99.0), 2: (0.5, 0.5)}) == []


def test_keys_of_two_queues_are_two_keys() -> None:
    births = [Birth("p", "k", 1, 0.5, 0.5), Birth("q", "k", 2, 0.5, 0.5), Birth("q", "z", 3, 0.5, 0.5)]
    keyed = [entry(2, HELD, job=2, key="k"), entry(3, GONE, job=2, key="k"), entry(4, HELD, job=3, key="z")]
    findings = check(Evidence(births=births, keyed=keyed))
    assert findings
    assert findings.counts["keys"] == 2


def limit_of(
    *ledger: Entry, most: int | None = None, rate: int | None = None, steps: tuple[Step, ...] = ()
) -> list[str]:
    findings = check(Evidence(limits=[Limit("task t", most, rate, 1.0, ledger)], steps=steps))
    return [violation.rule for violation in findings.violations]


def test_more_under_a_limit_than_may_are_found() -> None:
    assert limit_of(entry(1, HELD, job=1), entry(2, LEFT, job=1), entry(3, HELD, job=2), most=1) == []
    assert limit_of(entry(1, HELD, job=1), entry(3, HELD, job=2), most=1) == ["limit"]


def test_more_starts_than_a_rate_allows_are_found_unless_the_clock_stepped() -> None:
    def start(n: int, clock: float) -> Entry:
        return entry(n, HELD, job=n, clock=clock)

    assert limit_of(start(1, 1.0), start(2, 1.4), start(3, 2.1), rate=2) == []
    assert limit_of(start(1, 1.0), start(2, 1.4), start(3, 1.9), rate=2) == ["limit"]
    stepped = [start(1, 1.0), start(2, 1.4), start(3, 1.9)]
    assert limit_of(*stepped, rate=2, steps=(Step(2.5, 2.6, -1.0),)) == []
    assert limit_of(*stepped, rate=2, steps=(Step(0.5, 0.6, -1.0),)) == ["limit"]


def test_a_claim_of_what_is_paused_is_found() -> None:
    def claimed(asked_at: float, at: int, losses: tuple[tuple[float, float], ...] = ()) -> list[str]:
        ledger = [entry(at, HELD, job=1, asked_at=asked_at), entry(9, GONE, job=1)]
        findings = check(Evidence(still=[Still("task t", [(3.0, 5.0)], ledger)], losses=losses))
        return [violation.rule for violation in findings.violations]

    assert claimed(2.9, 4) == claimed(5.1, 6) == []
    # It may have read what there is after the end.
    assert claimed(4.9, 6) == []
    assert claimed(4.0, 4) == ["paused"]
    assert claimed(4.0, 4, losses=((4.5, 4.6),)) == []


def test_jobs_that_only_a_net_found_are_found() -> None:
    assert [violation.rule for violation in check(Evidence(unblocked=1)).violations] == ["net"]
    assert [violation.rule for violation in check(Evidence(hidden=1)).violations] == ["net"]
    # Where the clock was set back, what a job waits for may be due no longer; but nothing is hidden.
    assert check(Evidence(unblocked=1, stepped=True))
    assert not check(Evidence(hidden=1, stepped=True))


def test_of_many_violations_some_are_shown_and_all_are_counted() -> None:
    findings = Findings()
    findings.add(Violation("lost", f"job {n}", "") for n in range(1000))
    assert not findings
    assert len(findings.violations) == 10
    assert findings.broken["lost"] == 1000


# On purpose. A small scene, every step of which is forced.


def lose_a_lease(stage: Stage) -> None:
    """A worker finishes what another one holds by now, which finishes it as well."""
    stage.enqueue("effect")
    first = reserve_one(stage.conn, "first")
    stage.witness.starts(first.id, first.reservation)
    stage.lapse()
    second = reserve_one(stage.conn, "second")
    stage.witness.starts(second.id, second.reservation)
    for job in (first, second):
        stage.witness.done(job.id, job.reservation)
        with stage.conn.transaction() as transaction:
            stage.effect(stage.conn, job.id, job.reservation)
            if not call(stage.conn, "complete", job.id, job.reservation):
                raise psycopg.Rollback(transaction)


def test_a_fence_that_is_ignored_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._finish", "and j.reservation = w.reservation", "")
    lose_a_lease(stage)
    assert stage.rules() == ["effects", "fence"]


def test_the_same_with_the_fence_breaks_nothing(stage: Stage) -> None:
    lose_a_lease(stage)
    assert stage.rules() == []


_BLOCKED = "select exists (select from pgqueue.jobs where state = 'blocked')"


def end_while_another_claim_blocks(stage: Stage) -> None:
    """A claim blocks a job behind one that ends just then: the claim has read, and is not committed yet."""
    stage.enqueue("keyed", key="k")
    ahead = reserve_one(stage.conn)
    stage.witness.ran(ahead.id, ahead.reservation)
    stage.enqueue("keyed", key="k")
    claim = stage.database.session()
    claim.run("begin")
    assert claim.run("select id from pgqueue.reserve('other', 1)") == []
    assert call(stage.conn, "complete", ahead.id, ahead.reservation) is True
    claim.run("commit")


def test_an_end_that_leaves_no_note_for_an_open_claim_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._note_open_claims", "and pgqueue._guard_position(p_job_ids[1], false)", "")
    end_while_another_claim_blocks(stage)
    stage.work_off()
    assert stage.rules() == ["stuck"]
    # Also where the net has caught it.
    clock = Clock(stage.database.connect())
    wait_until(lambda: clock.advance("2 s") and maintain(stage.conn) and not value(stage.conn, _BLOCKED))
    stage.work_off()
    assert stage.rules() == ["net"]


def test_the_same_with_the_note_breaks_nothing(stage: Stage) -> None:
    end_while_another_claim_blocks(stage)
    stage.work_off()
    assert stage.rules() == []


def die_at_the_commit(stage: Stage, complete_on: Callable[[psycopg.Connection], psycopg.Connection]) -> None:
    """A handler's session is ended after it has completed its job, and before its own commit."""
    stage.enqueue("effect")
    job = reserve_one(stage.conn)
    own = stage.database.connect(autocommit=False)
    stage.witness.starts(job.id, job.reservation)
    stage.effect(own, job.id, job.reservation)
    stage.witness.done(job.id, job.reservation)
    assert call(complete_on(own), "complete", job.id, job.reservation)
    stage.conn.execute("select pg_terminate_backend(%s, 5000)", [own.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        own.commit()


def test_completion_before_the_commit_is_caught(stage: Stage) -> None:
    # Not in the transaction of the effects, but in one of its own.
    die_at_the_commit(stage, lambda own: stage.conn)
    assert stage.rules() == ["effects"]


def test_completion_with_the_commit_breaks_nothing(stage: Stage) -> None:
    die_at_the_commit(stage, lambda own: own)
    stage.lapse()
    job = reserve_one(stage.conn)
    with stage.conn.transaction():
        stage.witness.ran(job.id, job.reservation)
        stage.effect(stage.conn, job.id, job.reservation)
        assert call(stage.conn, "complete", job.id, job.reservation)
    assert stage.rules() == []


def test_a_claim_that_ignores_the_job_ahead_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._find_ahead", "case when t.is_payload is not true then", "case when false then")
    stage.enqueue("keyed", key="k")
    late = stage.enqueue("keyed", key="k")
    with stage.conn.transaction():
        # The first is skipped, for its row is locked for a moment.
        held = stage.database.session()
        held.run("begin")
        held.run("select from pgqueue.jobs where id < %s for update", [late])
        job = reserve_one(stage.conn)
    assert job.id == late
    held.run("rollback")
    stage.witness.ran(job.id, job.reservation)
    assert call(stage.conn, "complete", job.id, job.reservation)
    stage.work_off()
    assert stage.rules() == ["order"]


def test_a_claim_that_does_not_count_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._capacity_of", "max_executing - x.executing", "max_executing + 0 * x.executing")
    call(stage.conn, "set_limit", "task", "limited", max_executing=1)
    for _ in range(2):
        stage.enqueue("limited")
    taken = [reserve_one(stage.conn) for _ in range(2)]
    for job in taken:
        stage.witness.ran(job.id, job.reservation)
        assert call(stage.conn, "complete", job.id, job.reservation)
    assert stage.rules() == ["limit"]


def test_a_claim_that_ignores_a_pause_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._pauses_of", "'pause'", "'key'")
    stage.bug("pgqueue._pauses_of", "(p.until <= p_now)::integer", "100")
    stage.enqueue("plain")
    call(stage.conn, "pause", "task", "plain")
    began = time.time()
    stage.records.still.append(("task", "plain", began, began + 60))
    stage.work_off()
    assert stage.rules() == ["paused"]


def cancel_after_a_look_at_a_limit(stage: Stage) -> None:
    """A claim is cancelled after it has counted for a limit; its session goes on."""
    call(stage.conn, "set_limit", "task", "limited", max_executing=1)
    stage.enqueue("limited")
    claim = stage.database.session()
    claim.run("begin")
    claim.run("select from pgqueue.reserve('other', 1)")
    claim.run("rollback")


def test_a_lock_that_outlives_its_transaction_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._within_limits", "pg_try_advisory_xact_lock", "pg_try_advisory_lock")
    cancel_after_a_look_at_a_limit(stage)
    wait_until(stage.left_locks)
    # Nobody else gets anything under that limit.
    stage.work_off()
    assert stage.rules() == ["stuck"]


def test_the_same_with_a_lock_of_the_transaction_breaks_nothing(stage: Stage) -> None:
    cancel_after_a_look_at_a_limit(stage)
    stage.work_off()
    assert stage.rules() == []
    assert stage.left_locks() == []


def test_a_worker_that_gives_back_what_it_runs_is_caught(stage: Stage) -> None:
    stage.enqueue("plain")
    first = reserve_one(stage.conn, "first")
    with stage.witness.running(first.id, first.reservation):
        assert call(stage.conn, "release_unheld", "first") == first.id
        stage.work_off()
    assert stage.rules() == ["given back", "two handlers"]


@pytest.mark.parametrize("error", [asyncio.CancelledError(), psycopg.OperationalError("the connection is lost")])
def test_a_handler_that_never_learns_that_its_wait_was_committed_breaks_nothing(
    stage: Stage, error: BaseException
) -> None:
    stage.enqueue("plain")
    first = reserve_one(stage.conn, "first")
    other = stage.enqueue("plain")
    with (
        suppress(type(error)),
        stage.witness.running(first.id, first.reservation),
        stage.witness.leaving(first.id, first.reservation),
    ):
        assert call(stage.conn, "suspend", first.id, first.reservation, depends_on=[other]) == "suspended"
        raise error
    assert not call(stage.conn, "fail", first.id, first.reservation)
    stage.work_off()
    assert stage.rules() == []


def test_a_job_that_is_given_back_after_its_handler_has_waited_in_vain_is_caught(stage: Stage) -> None:
    stage.enqueue("plain")
    first = reserve_one(stage.conn, "first")
    with stage.witness.running(first.id, first.reservation):
        with suppress(EventTimeout), stage.witness.leaving(first.id, first.reservation):
            raise EventTimeout("it did not come")
        assert call(stage.conn, "release_unheld", "first") == first.id
        stage.work_off()
    assert stage.rules() == ["given back", "two handlers"]


def test_a_worker_that_gives_back_what_never_reached_it_breaks_nothing(stage: Stage) -> None:
    stage.enqueue("plain")
    first = reserve_one(stage.conn, "first")
    assert call(stage.conn, "release_unheld", "first") == first.id
    stage.work_off()
    assert stage.rules() == []


def extend_beside_a_lock(stage: Stage) -> None:
    """The row of an executing job is locked while its worker extends the lease, until after its first end."""
    clock = Clock(stage.database.connect())
    stage.enqueue("plain")
    first = reserve_one(stage.conn, "first", lease="3 s")
    # As if the grace period after a gap in maintenance was given already.
    stage.conn.execute("update pgqueue.jobs set grace_given = true")
    other = stage.database.session()
    other.run("begin")
    other.run("select from pgqueue.jobs where id = %s for update", [first.id])
    with stage.witness.running(first.id, first.reservation):
        for _ in range(4):
            clock.advance("1 s")
            maintain(stage.conn)
            assert call(stage.conn, "extend", [first.id], [first.reservation], "3 s") == first.id
        other.run("rollback")
        maintain(stage.conn)
        stage.work_off()
    call(stage.conn, "complete", first.id, first.reservation)


def test_a_rescue_that_ignores_what_extend_reported_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._rescue", "where x.job_id = h.id and x.until > v_now", "where false")
    extend_beside_a_lock(stage)
    assert stage.rules() == ["given back", "lease", "two handlers"]


def test_an_extension_that_reports_a_lease_of_the_past_is_caught(stage: Stage) -> None:
    # As it comes of a row that is locked, and was not updated.
    stage.bug("chaos.extend", "else pgqueue._held_until(coalesce(h.leader, h.id), v_now)", "else h.lease_expires_at")
    extend_beside_a_lock(stage)
    assert stage.rules() == ["lease"]


def test_the_same_with_what_extend_reported_breaks_nothing(stage: Stage) -> None:
    extend_beside_a_lock(stage)
    assert stage.rules() == []


def step_back_slightly(stage: Stage) -> None:
    """The clock steps back by less than a second, beside a producer that sees none of the heads."""
    clock = Clock(stage.database.connect())
    clock.set("2030-01-01 12:00+00")
    stage.enqueue("plain")
    producer = stage.database.connect()
    producer.execute("begin isolation level repeatable read")
    producer.execute("select from pgqueue.jobs")
    for _ in range(6):
        # So many that their claim moves the head for sure.
        for _ in range(50):
            stage.enqueue("plain")
        clock.advance("1 ms")
        stage.work_off()
        clock.advance("200 ms")
        maintain(stage.conn)
    clock.advance("-800 ms")
    stage.enqueue("plain", conn=producer)
    producer.commit()
    clock.advance("800 ms")
    stage.work_off()


def test_heads_that_move_up_to_the_clock_are_caught(stage: Stage) -> None:
    stage.bug("pgqueue._move_heads", "v_horizon.at - interval '1 s'", "v_horizon.at")
    step_back_slightly(stage)
    assert stage.rules() == ["stuck"]
    # Also where the net has caught it.
    stage.conn.execute("delete from pgqueue.maintenance_steps where step = 'hidden'")
    wait_until(lambda: maintain(stage.conn).ran)
    stage.work_off()
    assert stage.rules() == ["net"]


def test_the_same_with_heads_that_stay_behind_breaks_nothing(stage: Stage) -> None:
    step_back_slightly(stage)
    assert stage.rules() == []


def detach_where_jobs_go(stage: Stage) -> None:
    """The partition in which a job will end is detached while the job runs, and maintenance runs before it ends."""
    stage.enqueue("plain")
    job = reserve_one(stage.conn)
    tomorrow = value(stage.conn, "select to_char((now() at time zone 'UTC')::date + 1, '\"history_d_\"YYYYMMDD')")
    stage.conn.execute(f"alter table pgqueue.history_days detach partition pgqueue.{tomorrow}".encode())
    stage.conn.execute("delete from pgqueue.maintenance_steps")
    maintain(stage.conn)
    stage.witness.ran(job.id, job.reservation)
    with suppress(psycopg.errors.CheckViolation):
        call(stage.conn, "complete", job.id, job.reservation)


@pytest.mark.partitions
def test_a_partition_that_is_known_by_its_name_alone_is_caught(stage: Stage) -> None:
    gaps = "g (gap)\n"
    stage.bug("pgqueue._partition_gaps", gaps, f"{gaps} where to_regclass('pgqueue.' || w.name) is null\n")
    # Nor are the rows kept in the partition of the month.
    stage.bug("pgqueue._finish", "when 2 then v_kept_by_day := interval '0';", "when 2 then raise;")
    detach_where_jobs_go(stage)
    assert stage.rules() == ["stuck"]


@pytest.mark.partitions
def test_the_same_with_partitions_known_by_their_bounds_breaks_nothing(stage: Stage) -> None:
    detach_where_jobs_go(stage)
    assert stage.rules() == []


def test_history_that_is_not_kept_is_caught(stage: Stage) -> None:
    stage.enqueue("keyed")
    stage.work_off()
    stage.conn.execute("delete from pgqueue.history")
    assert stage.rules() == ["history", "lost"]


def let_heads_move(stage: Stage) -> None:
    """A job waits, and the heads of maintenance reach times after its own."""
    job = stage.enqueue("keyed")
    # One that saw the job, and one that sees what that one wrote.
    behind = """
        select min(n) < max(n)
        from pgqueue.horizons
        where at > (select ready_at + interval '1 s' from pgqueue.jobs where id = %s)
    """
    wait_until(lambda: maintain(stage.conn) and value(stage.conn, behind, job), timeout=20)
    stage.conn.execute("select pgqueue._move_heads(array[row('q', 0, false)::pgqueue.sub_lane], false)")
    stage.work_off()


def test_a_head_taken_without_the_second_check_is_caught(stage: Stage) -> None:
    look = "select f.at, f.id into v_first"
    stage.bug("pgqueue._move_heads", look, "select null::timestamptz as at, null::bigint as id into v_first")
    let_heads_move(stage)
    assert stage.rules() == ["stuck"]
    # Also where the net has caught it.
    stage.conn.execute("delete from pgqueue.maintenance_steps where step = 'hidden'")
    wait_until(lambda: maintain(stage.conn).ran)
    stage.work_off()
    assert stage.rules() == ["net"]


def test_the_same_with_the_second_check_breaks_nothing(stage: Stage) -> None:
    let_heads_move(stage)
    assert stage.rules() == []
