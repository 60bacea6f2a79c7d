"""The checker finds what it is there to find: in logs written by hand, and in queues with a bug put in on purpose.

The bugs are put into the SQL functions of the test's own database, and the orders in which they show are forced.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, maintain, reserve, reserve_one, value
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
    Findings,
    Limit,
    Live,
    Promise,
    Run,
    Turn,
    Violation,
    check,
    check_key,
)
from tests.chaos.recorder import EFFECT, Intent, ProducerLog, Records, Witness
from tests.databases import Database
from tests.facts import wait_until

# By hand. One job whose life was as it should be, and what may be said of it besides.

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
) -> Entry:
    """At second n of the run, unless said otherwise."""
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
    )


def ran(reservation: int = R1, start: float = 2.1, end: float | None = 2.9, how: str = "ok") -> Run:
    return Run(JOB, reservation, start, end, how)


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
        **known,  # type: ignore[arg-type]
    )


def broken(*records: object, **known: object) -> list[str]:
    """The rules that these records break."""
    return sorted(check(evidence(*records, **known)).broken)


def test_a_life_as_it_should_be_breaks_nothing() -> None:
    findings = check(evidence(*WELL))
    assert findings
    assert findings.counts["ended: succeeded"] == 1


def test_a_second_try_after_a_lost_lease_breaks_nothing_and_the_first_is_counted() -> None:
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


def test_an_end_by_who_does_not_hold_it_is_found() -> None:
    # The ledger says so...
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


def test_effects_are_there_exactly_once_under_the_reservation_that_ended_it() -> None:
    def found(*effects: Effect, state: str = "succeeded") -> list[str]:
        return broken(*WELL[:-1], ended(state=state), *effects, transactional=frozenset("t"))

    assert found(Effect(JOB, R1, None)) == []
    assert found() == ["effects"]
    assert found(Effect(JOB, R1, None), Effect(JOB, R1, None)) == ["effects"]
    assert found(Effect(JOB, R2, None)) == ["effects"]
    assert found(state="dead") == []
    assert found(Effect(JOB, R1, None), state="dead") == ["effects"]


def test_a_job_that_nobody_cancelled_must_not_end_so() -> None:
    cancelled = [promise(), entry(3, GONE, 0, was_executing=False), ended(0, "cancelled")]
    assert broken(*cancelled) == ["cancelled"]
    assert broken(*cancelled, cancellable=frozenset("t")) == []


def key_of(*ledger: Entry, births: dict[int, tuple[float | None, float]] | None = None) -> list[str]:
    """What one key breaks. Births: when each was acknowledged, and when it was due."""
    born = [Birth("q", "k", job, *times) for job, times in (births or {}).items()]
    return [violation.rule for violation in check_key(born, ledger)]


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
    # Acknowledged only after the claim looked; never acknowledged; not due by the queue's clock.
    assert key_of(*second_first, births={1: (5.1, 1.0), 2: (4.0, 1.0)}) == []
    assert key_of(*second_first, births={1: (None, 1.0), 2: (4.0, 1.0)}) == []
    assert key_of(*second_first, births={1: (4.0, 5.5), 2: (4.0, 1.0)}) == []


def test_a_job_that_was_ever_held_keeps_its_place_until_it_is_gone() -> None:
    snoozed = [entry(1, HELD, job=1), entry(2, LEFT, job=1), entry(5, HELD, job=2), entry(6, GONE, job=2)]
    assert key_of(*snoozed, births={1: (None, 99.0), 2: (0.5, 0.5)}) == ["order"]
    gone = [entry(1, HELD, job=1), entry(2, LEFT, job=1), entry(3, GONE, 0, job=1, was_executing=False)]
    assert key_of(*gone, *snoozed[2:], births={1: (None, 99.0), 2: (0.5, 0.5)}) == []


def test_keys_are_told_apart_by_their_queue() -> None:
    births = [Birth("p", "k", 1, 0.5, 0.5), Birth("q", "k", 2, 0.5, 0.5), Birth("q", "z", 3, 0.5, 0.5)]
    keyed = [entry(2, HELD, job=2, key="k"), entry(3, GONE, job=2, key="k"), entry(4, HELD, job=3, key="z")]
    findings = check(Evidence(births=births, keyed=keyed))
    assert findings
    assert findings.counts["keys"] == 2


def limit_of(*ledger: Entry, most: int | None = None, rate: int | None = None) -> list[str]:
    findings = check(Evidence(limits=[Limit("task t", most, rate, 1.0, ledger)]))
    return [violation.rule for violation in findings.violations]


def test_more_under_a_limit_than_may_are_found() -> None:
    assert limit_of(entry(1, HELD, job=1), entry(2, LEFT, job=1), entry(3, HELD, job=2), most=1) == []
    assert limit_of(entry(1, HELD, job=1), entry(3, HELD, job=2), most=1) == ["limit"]


def test_more_starts_than_a_rate_allows_are_found_unless_the_clock_stepped() -> None:
    def start(n: int, clock: float) -> Entry:
        return entry(n, HELD, job=n, clock=clock)

    assert limit_of(start(1, 1.0), start(2, 1.4), start(3, 2.1), rate=2) == []
    assert limit_of(start(1, 1.0), start(2, 1.4), start(3, 1.9), rate=2) == ["limit"]
    assert limit_of(start(1, 1.0), start(2, 2.0), start(3, 3603.0), start(4, 4.0), start(5, 4.5), rate=2) == []


def test_jobs_that_only_a_net_found_are_found() -> None:
    assert [violation.rule for violation in check(Evidence(unparked=1)).violations] == ["net"]
    assert [violation.rule for violation in check(Evidence(hidden=1)).violations] == ["net"]
    assert check(Evidence(unparked=1, hidden=1, stepped=True))


def test_of_many_violations_some_are_told_and_all_are_counted() -> None:
    findings = Findings()
    findings.add(Violation("lost", f"job {n}", "") for n in range(1000))
    assert not findings
    assert len(findings.violations) == 10
    assert findings.broken["lost"] == 1000


# On purpose. A small scene, every step of which is forced.


class Stage:
    """A database with a bug in it, or without, and what is written down of it."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.database = database
        self.conn = database.connect()
        self.records = Records(directory / "records", database.dsn)
        self.records.prepare()
        self.witness = Witness.of_this_process(self.records.directory)
        self._log = ProducerLog(self.records.directory)

    def bug(self, function: str, was: str, becomes: str) -> None:
        """Put a bug into a function."""
        [(text,)] = self.conn.execute("select pg_get_functiondef(%s::regproc)", [function]).fetchall()
        assert was in text, f"{function} reads otherwise now: put the bug in another way"
        self.conn.execute(text.replace(was, becomes).encode())

    def enqueue(self, kind: str, key: str | None = None) -> int:
        token = secrets.token_hex(4)
        job: int = call(self.conn, "enqueue", kind, Jsonb({"token": token}), queue="q", key=key)
        self._log.intends(token, [Intent(job, kind, "q", key, 0.0)])
        self._log.learns(token, COMMITTED, 1)
        return job

    def lapse(self) -> None:
        """What is reserved now lapses, and is ready again."""
        # As a gap in housekeeping has been passed over already.
        self.conn.execute("update pgqueue.jobs set lease_expires_at = clock_timestamp(), lease_prolonged = true")
        maintain(self.conn)
        wait_until(lambda: maintain(self.conn) and not value(self.conn, _EXECUTING))

    def effect(self, conn: psycopg.Connection, job: int, reservation: int) -> None:
        conn.execute(EFFECT, {"job": job, "reservation": reservation, "queue": "q", "key": None})

    def work_off(self) -> None:
        """Run all that is there, as a worker would."""
        while taken := reserve(self.conn, 10):
            for job in taken:
                self.witness.ran(job.id, job.reservation)
                assert call(self.conn, "complete", job.id, job.reservation)

    def rules(self) -> list[str]:
        self.records.load()
        with self.records.evidence(transactional=frozenset({"effect"})) as found:
            return sorted(check(found).broken)


_BLOCKED = "select exists (select from pgqueue.jobs where state = 'blocked')"
_EXECUTING = "select exists (select from pgqueue.jobs where state = 'executing')"


@pytest.fixture
def stage(database: Database, tmp_path: Path) -> Stage:
    return Stage(database, tmp_path)


def lose_a_lease(stage: Stage) -> None:
    """A worker finishes what another one holds by now, which finishes it as well."""
    stage.enqueue("effect")
    first = reserve_one(stage.conn, "first", lease="1 s")
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


def end_while_another_claim_parks(stage: Stage, *, waits: bool) -> None:
    """A claim parks a job behind one that ends just then: the claim has looked, and is not committed yet."""
    stage.enqueue("keyed", key="k")
    ahead = reserve_one(stage.conn)
    stage.witness.ran(ahead.id, ahead.reservation)
    stage.enqueue("keyed", key="k")
    claim, end = stage.database.session(), stage.database.session()
    claim.run("begin")
    assert claim.run("select id from pgqueue.reserve('other', 1)") == []
    ending = end.start("select pgqueue.complete(%s, %s)", [ahead.id, ahead.reservation])
    if waits:
        wait_until(lambda: end.waits_behind(claim))
    else:
        assert ending.result(10) == [(True,)]
    claim.run("commit")
    assert ending.result(10) == [(True,)]


def test_parking_without_its_lock_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._park", "for share skip locked", "")
    end_while_another_claim_parks(stage, waits=False)
    stage.work_off()
    assert stage.rules() == ["stuck"]
    # Also where the net has caught it.
    wait_until(lambda: maintain(stage.conn) and not value(stage.conn, _BLOCKED))
    stage.work_off()
    assert stage.rules() == ["net"]


def test_the_same_with_the_lock_breaks_nothing(stage: Stage) -> None:
    end_while_another_claim_parks(stage, waits=True)
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


def test_a_claim_that_does_not_ask_who_is_ahead_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._sort_out", "when not v_row.accumulate then", "when false then")
    stage.enqueue("keyed", key="k")
    late = stage.enqueue("keyed", key="k")
    with stage.conn.transaction():
        # The first is passed over, for it is held for a moment.
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
    stage.bug("pgqueue._room", "room := p_max_executing - ", "room := p_max_executing + 0 * ")
    call(stage.conn, "set_limit", "task", "limited", max_executing=1)
    for _ in range(2):
        stage.enqueue("limited")
    taken = [reserve_one(stage.conn) for _ in range(2)]
    for job in taken:
        stage.witness.ran(job.id, job.reservation)
        assert call(stage.conn, "complete", job.id, job.reservation)
    assert stage.rules() == ["limit"]


def test_history_that_is_not_kept_is_caught(stage: Stage) -> None:
    stage.enqueue("keyed")
    stage.work_off()
    stage.conn.execute("delete from pgqueue.history")
    assert stage.rules() == ["history", "lost"]


def let_heads_move(stage: Stage) -> None:
    """A job waits, and housekeeping passes times that are behind it."""
    job = stage.enqueue("keyed")
    # One that saw the job, and one that sees what that one wrote.
    behind = "select min(n) < max(n) from pgqueue.horizons where at > (select ready_at from pgqueue.jobs where id = %s)"
    wait_until(lambda: maintain(stage.conn) and value(stage.conn, behind, job), timeout=20)
    stage.conn.execute("select pgqueue._move_heads(array['q'], array[0]::smallint[], array[false], false)")
    stage.work_off()


def test_a_head_taken_without_the_second_look_is_caught(stage: Stage) -> None:
    look = "v_first := pgqueue._first_of(v_part.queue, v_part.priority, v_part.resumed, v_base, v_horizon.at);"
    stage.bug("pgqueue._move_heads", look, "")
    let_heads_move(stage)
    assert stage.rules() == ["stuck"]
    # Also where the net has caught it.
    stage.conn.execute("update pgqueue.housekeeping set hidden_at = null")
    wait_until(lambda: maintain(stage.conn).ran)
    stage.work_off()
    assert stage.rules() == ["net"]


def test_the_same_with_the_second_look_breaks_nothing(stage: Stage) -> None:
    let_heads_move(stage)
    assert stage.rules() == []
