"""doctor(): each thing that is wrong is found, with what mends it; and nothing where nothing is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import embedded
from pgqueue.errors import EmbeddedError
from pgqueue.schema.migrate import migrate
from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, maintain, reserve, reserve_one, value
from tests.cli.conftest import Outcome, Run, run
from tests.databases import Database
from tests.facts import wait_until

__all__ = ["run"]


def findings(conn: psycopg.Connection) -> dict[str, tuple[str, str, str]]:
    """Return severity, subject and remedy by topic, but for what depends on the server that tests run on."""
    rows = conn.execute(
        "select topic, severity, subject, remedy from pgqueue.doctor() order by severity desc"
    ).fetchall()
    return {row[0]: row[1:] for row in rows if row[0] not in ("settings", "connections", "blind", "wraparound")}


def test_nothing_is_wrong_with_a_queue_at_work(conn: psycopg.Connection) -> None:
    call(conn, "hello", "w")
    call(conn, "declare_task", "t")
    enqueue_many(conn, 3)
    maintain(conn)
    assert findings(conn) == {}


def test_due_jobs_without_a_worker(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, queue="mail")
    clock.advance(timedelta(minutes=2))
    maintain(conn)
    assert findings(conn)["no_worker"][:2] == ("critical", "mail")


def test_a_paused_queue_and_its_remedy(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "hello", "w")
    enqueue(conn, queue="mail")
    call(conn, "pause_queue", "mail")
    clock.advance(timedelta(minutes=2))
    severity, subject, remedy = findings(conn)["paused"]
    assert (severity, subject) == ("info", "mail")
    conn.execute(remedy.encode())
    assert "paused" not in findings(conn)


def test_an_unknown_task(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "send_email")
    enqueue(conn, "sned_email")
    assert findings(conn)["unknown_task"][1] == "sned_email"


def give_back(conn: psycopg.Connection, clock: Clock, how: str = "10 s") -> None:
    """A worker that does not have the task of the only job reserves it, and gives it back for ten seconds."""
    held = reserve_one(conn, "v2")
    call(conn, "release", [held.id], [held.reservation], how)
    clock.advance(timedelta(seconds=10))


def test_a_task_that_no_living_worker_has_any_more(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    call(conn, "hello", "v2")
    call(conn, "declare_task", "old")
    maintain(conn)
    job_id = enqueue(conn, "old")
    for _ in range(2):
        give_back(conn, clock)
    assert "given_back" not in findings(conn)
    give_back(conn, clock)
    severity, subject, remedy = findings(conn)["given_back"]
    assert (severity, subject) == ("warning", "old")
    assert f"such as job {job_id}, the last time worker v2" in value(
        conn, "select evidence from pgqueue.doctor() where topic = 'given_back'"
    )
    conn.execute(remedy.partition("or: ")[2].encode())
    assert "given_back" not in findings(conn)


def test_jobs_that_come_back_for_another_reason_are_not_given_back(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    call(conn, "hello", "v2")
    call(conn, "declare_task", "t")
    maintain(conn)
    enqueue(conn)
    # A worker that ends gives unstarted jobs back at once.
    for _ in range(4):
        give_back(conn, clock, "0")
    assert "given_back" not in findings(conn)
    give_back(conn, clock)
    assert "given_back" in findings(conn)
    # A handler that snoozes has started.
    entry = {"queue": "default", "task": "t", "started": 1, "snoozed": 1}
    assert call(conn, "beat", "v2", Jsonb({"jobs": [entry]})) is True
    clock.advance(timedelta(seconds=10))
    maintain(conn)
    assert "given_back" not in findings(conn)


def test_maintenance_that_does_not_run(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn)
    assert findings(conn)["maintenance"][0] == "critical"
    maintain(conn)
    assert "maintenance" not in findings(conn)
    clock.advance(timedelta(minutes=2))
    assert findings(conn)["maintenance"][0] == "critical"


def test_a_limit_that_nothing_can_leave(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "task", "t", max_executing=0)
    enqueue_many(conn, 2)
    reserve(conn, 2)
    assert findings(conn)["limit"][:2] == ("warning", "task:t")


def test_a_limit_that_nothing_can_leave_is_one_finding_where_it_makes_its_queue_late(
    conn: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "set_limit", "queue", "default", max_executing=0)
    call(conn, "hello", "w")
    enqueue(conn)
    clock.advance(timedelta(minutes=10))
    call(conn, "hello", "w")
    found = conn.execute("select subject, remedy from pgqueue.doctor() where topic = 'limit'").fetchall()
    assert [subject for subject, _ in found] == ["queue:default"]
    assert "pgqueue limits set queue default --max-executing 1" in found[0][1]


@pytest.mark.parametrize(("jobs", "says"), [(1, "holds back 1 job"), (2, "holds back 2 jobs")])
def test_a_number_has_its_noun_in_the_singular_or_the_plural(conn: psycopg.Connection, jobs: int, says: str) -> None:
    call(conn, "set_limit", "task", "t", max_executing=0)
    enqueue_many(conn, jobs)
    reserve(conn, jobs)
    evidence = "select evidence from pgqueue.doctor() where topic = 'limit'"
    assert value(conn, evidence).endswith(f"and {says}")


@pytest.mark.parametrize(
    "name", ["mail", "a b", "x; touch /tmp/y", "it's", "$(reboot)", "-q", "`id`", 'a"b', "a\nb", "ä"]
)
def test_a_name_in_a_command_is_one_word_of_a_shell(conn: psycopg.Connection, clock: Clock, name: str) -> None:
    enqueue(conn, queue=name)
    clock.advance(timedelta(minutes=2))
    remedy = findings(conn)["no_worker"][2]
    assert shlex.split(remedy) == ["pgqueue", "worker", "-r", "MODULE", "--queue", name]
    assert (name == "mail") == (remedy == f"pgqueue worker -r MODULE --queue {name}")


def test_a_queue_that_its_workers_do_not_keep_up_with(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, queue="mail")
    clock.advance(timedelta(minutes=6))
    call(conn, "hello", "w")
    assert findings(conn)["lag"][:2] == ("warning", "mail")


def test_jobs_that_wait_for_a_limit_that_is_gone(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "task", "t", max_executing=1)
    enqueue_many(conn, 2)
    reserve(conn, 2)
    assert "limit" not in findings(conn)
    # By hand, past drop_limit().
    conn.execute("delete from pgqueue.limits")
    severity, subject, remedy = findings(conn)["limit"]
    assert (severity, subject) == ("warning", "task:t")
    clock.advance("1 s")
    conn.execute(remedy.partition(" releases")[0].encode())
    assert "limit" not in findings(conn)


def test_jobs_of_a_rate_that_is_gone_are_released_from_its_next_start_on(
    conn: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "set_limit", "task", "t", rate=1, per="1 h")
    enqueue_many(conn, 3)
    reserve(conn, 3)
    conn.execute("delete from pgqueue.limits")
    maintain(conn)
    assert "from its next start on" in findings(conn)["limit"][2]
    clock.advance("1 h")
    maintain(conn)
    assert "limit" not in findings(conn)


def test_a_schedule_that_missed(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "schedule", "s", every="5 min", task="t")
    clock.advance(timedelta(minutes=30))
    assert findings(conn)["schedule"][:2] == ("critical", "s")


def test_a_clock_that_is_wrong_and_workers_of_two_versions(conn: psycopg.Connection) -> None:
    now = value(conn, "select extract(epoch from clock_timestamp())::float8")
    call(conn, "hello", "a", None, Jsonb({"host": "h", "clock": now + 100, "version": "1"}))
    call(conn, "hello", "b", None, Jsonb({"host": "i", "clock": now, "version": "2", "listen": False}))
    found = findings(conn)
    assert found["clock"][:2] == ("warning", "h")
    assert found["versions"][0] == "info"
    assert found["pooler"][1] == "b"


def test_a_worker_that_is_gone_with_its_jobs(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "hello", "w")
    enqueue(conn)
    reserve(conn, 1, "w")
    clock.advance(timedelta(minutes=3))
    assert findings(conn)["worker"][1] == "w"


def test_ten_processes_of_a_host_are_one_finding(conn: psycopg.Connection) -> None:
    now = value(conn, "select extract(epoch from clock_timestamp())::float8")
    for n in range(10):
        call(
            conn, "hello", f"w:{n}", None, Jsonb({"host": "h", "clock": now + 90 + n, "listen": False, "version": "1"})
        )
    rows = conn.execute("select topic, subject from pgqueue.doctor() where topic in ('clock', 'pooler')").fetchall()
    assert sorted(rows) == [("clock", "h"), ("pooler", "10 workers")]


def test_schedules_that_wait_for_maintenance_are_no_findings_of_their_own(
    conn: psycopg.Connection, clock: Clock
) -> None:
    for n in range(5):
        call(conn, "schedule", f"s{n}", every="5 min", task="t")
    clock.advance(timedelta(minutes=30))
    assert "schedule" in findings(conn)
    enqueue(conn, delay="1 h")
    assert "maintenance" in findings(conn)
    assert "schedule" not in findings(conn)


def test_an_old_snapshot_is_one_finding_with_the_queues_that_are_late_by_it(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "hello", "w", None, Jsonb({"concurrency": 2}))
    enqueue(conn, queue="mail")
    maintain(conn)
    with database.connect(application_name="a report").transaction() as held:
        held.connection.execute("select pg_current_xact_id()")
        clock.advance(timedelta(minutes=20))
        call(conn, "beat", "w")
        rows = conn.execute(
            "select topic, evidence from pgqueue.doctor() where topic in ('database', 'old_snapshot') and subject = %s",
            [f"session {held.connection.info.backend_pid}"],
        ).fetchall()
    assert [row[0] for row in rows] == ["old_snapshot"]
    # The session of this test is as old by its clock, and may be the one that why_late() names.
    assert value(conn, "select count(*) from pgqueue.doctor() where topic = 'database'") == 0


def memory(conn: psycopg.Connection) -> list[tuple[str, str, str, str]]:
    return conn.execute(
        "select severity, subject, evidence, remedy from pgqueue.doctor() where topic = 'memory' order by subject"
    ).fetchall()


def test_a_worker_that_grows_to_its_limit_is_found_with_what_it_runs(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    mib = 1 << 20
    known = {"concurrency": 4, "memory": 50 * mib, "memory_limit": 1000 * mib, "max_memory": 1000 * mib}
    call(conn, "hello", "w", None, Jsonb(known))
    first, *_ = enqueue_many(conn, 2, "grow")
    enqueue(conn, "mail")
    held = reserve(conn, 3, "w", lease="1 hour")
    call(conn, "started", [each.id for each in held], [each.reservation for each in held])
    for size in (300, 700):
        clock.advance("10 s")
        call(conn, "beat", "w", memory=size * mib)
        assert memory(conn) == []
    clock.advance("90 s")
    call(conn, "beat", "w", memory=950 * mib)
    [(severity, subject, evidence, remedy)] = memory(conn)
    assert (severity, subject) == ("critical", "w")
    assert evidence == (
        "it holds 950 MB, 95 % of its limit of 1000 MB; 110 s ago it held 50 MB;"
        f" it runs 2 grow, 1 mail, the longest job {first} for 110 s"
    )
    assert remedy == "pgqueue jobs list --state executing --worker w; pgqueue workers kill w"
    call(conn, "complete", held[1].id, held[1].reservation)
    call(conn, "complete", held[2].id, held[2].reservation)
    assert memory(conn)[0][3] == (
        f"pgqueue jobs stack {first}; pgqueue jobs cancel {first};"
        f" if it does not end: pgqueue workers kill --job {first}"
    )
    call(conn, "complete", held[0].id, held[0].reservation)
    assert memory(conn)[0][2].endswith("it runs no job")
    assert memory(conn)[0][3] == "pgqueue workers stop w"
    # It has stayed so for ten minutes: its supervisor replaces it at its limit.
    for _ in range(11):
        clock.advance("60 s")
        call(conn, "hello", "w", None, Jsonb({**known, "memory": 950 * mib}))
    assert memory(conn) == []
    # The limit of a container ends it.
    call(conn, "hello", "w", None, Jsonb({"memory": 950 * mib, "memory_limit": 1000 * mib}))
    assert [row[0] for row in memory(conn)] == ["warning"]


def test_a_worker_that_grows_fast_is_found_far_below_its_limit(conn: psycopg.Connection, clock: Clock) -> None:
    gib = 1 << 30
    for size in (1, 2, 3, 5):
        call(conn, "hello", "w", None, Jsonb({"memory": size * gib // 4, "memory_limit": 64 * gib}))
        clock.advance("10 s")
    [(severity, _, evidence, _)] = memory(conn)
    assert severity == "warning"
    assert evidence.startswith("it holds 1280 MB, 2 % of its limit of 64 GB; 40 s ago it held 256 MB")
    clock.advance("10 min")
    call(conn, "hello", "w", None, Jsonb({"memory": 5 * gib // 4, "memory_limit": 64 * gib}))
    assert memory(conn) == []


@pytest.mark.parametrize("odd", [0, -1, "much", None, 10**30, {"mib": 1}])
def test_an_odd_limit_of_memory_is_no_finding(conn: psycopg.Connection, odd: object) -> None:
    call(conn, "hello", "w", None, Jsonb({"memory": 1 << 20, "memory_limit": odd}))
    assert memory(conn) == []


def test_a_task_that_mostly_fails(conn: psycopg.Connection) -> None:
    call(conn, "hello", "w")
    call(conn, "beat", "w", Jsonb({"jobs": [{"queue": "q", "task": "bad", "succeeded": 5, "failed": 40}]}))
    maintain(conn)
    assert findings(conn)["failures"][1] == "bad"


def test_rights_that_are_too_wide_and_their_remedy(conn: psycopg.Connection) -> None:
    conn.execute("grant select on pgqueue.jobs to public")
    severity, subject, remedy = findings(conn)["rights"]
    assert (severity, subject) == ("critical", "table jobs")
    conn.execute(remedy.split("and: ")[1].encode())
    assert "rights" not in findings(conn)


@pytest.mark.parametrize("off", ["false", "off", "no", "0"])
def test_autovacuum_that_was_switched_off(conn: psycopg.Connection, off: str) -> None:
    conn.execute(f"alter table pgqueue.jobs set (autovacuum_enabled = {off})".encode())
    assert findings(conn)["autovacuum"][:2] == ("critical", "jobs")
    conn.execute(findings(conn)["autovacuum"][2].encode())
    assert "autovacuum" not in findings(conn)


@pytest.mark.parametrize(("setting", "severity"), [("synchronous_commit", "warning")])
def test_a_setting_that_loses_commits(database: Database, setting: str, severity: str) -> None:
    conn = database.connect(options=f"-c {setting}=off")
    rows = conn.execute("select severity, evidence from pgqueue.doctor() where subject = %s", [setting]).fetchall()
    assert [(row[0], "off" in row[1]) for row in rows] == [(severity, True)]


def old_snapshots(conn: psycopg.Connection) -> dict[str, tuple[str, str, str]]:
    """Return severity, evidence and remedy by subject, but for this session, which is as old as the clock says."""
    rows = conn.execute(
        "select subject, severity, evidence, remedy from pgqueue.doctor()"
        " where topic = 'old_snapshot' and subject <> format('session %s', pg_backend_pid())"
    ).fetchall()
    return {row[0]: row[1:] for row in rows}


def test_an_old_snapshot_who_holds_it_since_when_and_what_ends_it(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    holder = database.connect(application_name="a report", autocommit=False)
    holder.execute("set transaction isolation level repeatable read")
    holder.execute("select count(*) from pgqueue.jobs")
    subject = f"session {holder.info.backend_pid}"
    assert subject not in old_snapshots(conn)
    clock.advance(timedelta(minutes=20))
    severity, evidence, remedy = old_snapshots(conn)[subject]
    assert severity == "warning"
    assert "a report" in evidence
    assert "idle in transaction" in evidence
    clock.advance(timedelta(hours=1))
    assert old_snapshots(conn)[subject][0] == "critical"
    # What it costs: the dead rows that vacuum leaves, as they become more.
    # What was dead before the snapshot may be removed meanwhile.
    assert dead_rows(old_snapshots(conn)[subject][1]) < 3000
    enqueue_many(conn, 3000)
    conn.execute("delete from pgqueue.jobs")
    conn.execute("vacuum pgqueue.jobs")
    wait_until(lambda: dead_rows(old_snapshots(conn)[subject][1]) >= 3000)
    conn.execute(remedy.split(" and set")[0].encode())
    wait_until(lambda: subject not in old_snapshots(conn))
    holder.close()


def dead_rows(evidence: str) -> int:
    found = re.search(r"have ([\d,]+) dead and [\d,]+ live rows now, \d+ [kM]B with their indexes", evidence)
    assert found is not None, evidence
    return int(found[1].replace(",", ""))


def test_dead_rows_of_a_table(conn: psycopg.Connection) -> None:
    conn.execute("alter table pgqueue.worker_reports set (autovacuum_enabled = false)")
    conn.execute(
        "insert into pgqueue.worker_reports (worker, at, report)"
        " select 'w', now(), '{}' from generate_series(1, 120000)"
    )
    conn.execute("delete from pgqueue.worker_reports")
    wait_until(lambda: "dead_tuples" in findings(conn))
    severity, subject, remedy = findings(conn)["dead_tuples"]
    assert (severity, subject) == ("warning", "worker_reports")
    conn.execute(remedy.split(";")[0].encode())
    wait_until(lambda: "dead_tuples" not in findings(conn))


@pytest.mark.partitions
def test_partitions_that_are_overdue_or_missing(conn: psycopg.Connection, clock: Clock) -> None:
    maintain(conn)
    assert "partitions" not in findings(conn)
    clock.advance(timedelta(days=60))
    rows = conn.execute("select evidence from pgqueue.doctor() where topic = 'partitions'").fetchall()
    assert any("retention is over" in row[0] for row in rows)
    assert any("is missing" in row[0] for row in rows)


@pytest.mark.parametrize("info", [{"listen": False}, {"pooled": True}])
def test_a_pooler_that_a_worker_goes_through(conn: psycopg.Connection, info: dict[str, bool]) -> None:
    call(conn, "hello", "w", None, Jsonb(info))
    assert findings(conn)["pooler"][:2] == ("info", "w")


def test_a_job_whose_parents_are_gone(conn: psycopg.Connection, clock: Clock) -> None:
    parent = enqueue(conn, "export")
    child = enqueue(conn, "report", depends_on=[parent])
    maintain(conn)
    clock.advance(timedelta(minutes=2))
    assert "parents" not in findings(conn)
    # By hand, past the functions: what a hurried operator does.
    conn.execute("delete from pgqueue.jobs where id = %s", [parent])
    severity, subject, remedy = findings(conn)["parents"]
    assert (severity, subject) == ("warning", f"job {child}")
    conn.execute(remedy.rpartition(": ")[2].encode())
    assert "parents" not in findings(conn)


def test_a_group_that_was_left_open(conn: psycopg.Connection, clock: Clock) -> None:
    group = call(conn, "open_group", "import")
    [member] = enqueue_many(conn, 1, group_id=group)
    clock.advance(timedelta(hours=2))
    assert "group" not in findings(conn)
    call(conn, "cancel", member)
    severity, subject, remedy = findings(conn)["group"]
    assert (severity, subject) == ("warning", f"group {group}")
    conn.execute(remedy.encode())
    assert "group" not in findings(conn)


@pytest.fixture(scope="module")
def reckless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the DSN of a server of its own, with settings that lose commits."""
    if not embedded.available():
        pytest.skip("no server of our own: install the extra embedded")
    options = dict.fromkeys(("fsync", "full_page_writes", "autovacuum", "synchronous_commit"), "off")
    directory = tmp_path_factory.mktemp("reckless")
    try:
        with embedded.running(directory, options={**options, "max_prepared_transactions": "5"}) as dsn:
            migrate(dsn)
            yield dsn
    finally:
        embedded.stop(directory)


@pytest.mark.long
def test_settings_of_the_server_that_lose_commits(reckless: str) -> None:
    with psycopg.connect(reckless, autocommit=True) as conn:
        rows = conn.execute("select subject, severity from pgqueue.doctor() where topic = 'settings'").fetchall()
    found = dict(rows)
    assert found["fsync"] == found["full_page_writes"] == found["autovacuum"] == "critical"
    assert found["synchronous_commit"] == "warning"


def test_a_prepared_transaction_that_was_forgotten(reckless: str) -> None:
    with psycopg.connect(reckless, autocommit=True) as conn:
        with conn.transaction():
            conn.execute("set local pgqueue.notify = 'off'")
            conn.execute("create table forgotten ()")
            conn.execute("prepare transaction 'forgotten'")
        conn.execute("""
            create or replace function pgqueue._clock() returns timestamptz language sql stable
            as 'select clock_timestamp() + make_interval(hours => 1)'
        """)
        _, _, remedy = old_snapshots(conn)["prepared transaction forgotten"]
        assert remedy == "rollback prepared 'forgotten';"
        conn.execute(remedy.encode())
        assert "prepared transaction forgotten" not in old_snapshots(conn)


@pytest.mark.long
def test_the_queue_of_notifications_that_fills(tmp_path: Path) -> None:
    if not embedded.available():
        pytest.skip("no server of our own: install the extra embedded")
    directory = tmp_path / "notify"
    try:
        dsn = embedded.start(directory, durable=False, options={"max_notify_queue_pages": "64"})
    except EmbeddedError:
        pytest.skip("max_notify_queue_pages came with PostgreSQL 17")
    try:
        migrate(dsn)
        with psycopg.connect(dsn) as listener, psycopg.connect(dsn, autocommit=True) as conn:
            listener.execute("listen something")
            listener.commit()
            listener.execute("select 1")
            assert "notify_queue" not in findings(conn)
            for _ in range(30):
                conn.execute("select pg_notify('something', repeat('x', 7000))")
            assert findings(conn)["notify_queue"][:2] == ("warning", "NOTIFY")
            listener.rollback()
    finally:
        embedded.stop(directory)


def test_on_the_command_line_the_exit_code_says_how_bad_it_is(conn: psycopg.Connection, run: Run) -> None:
    def ask(*options: str) -> Outcome:
        return run("doctor", *options)

    assert ask("--fail-on", "never").code == 0
    conn.execute("grant select on pgqueue.jobs to public")
    assert ask("--fail-on", "critical").code == 1
    found = ask("--json", "--fail-on", "never")
    assert {"severity", "topic", "subject", "evidence", "remedy"} == set(found.json()[0])
    assert any(each["topic"] == "rights" for each in found.json())
    assert "revoke" in ask("--fail-on", "never").out
    conn.execute("update pgqueue.releases set revision = '0001', digest = 'x'")
    assert any(each["topic"] == "schema" for each in ask("--json").json())
    assert ask("--fail-on", "sometimes").code == 2


def test_row_level_security_without_a_policy_is_told_for_what_others_read(
    database: Database, conn: psycopg.Connection
) -> None:
    role, owner = f"test_{database.name[-8:]}", f"owner_{database.name[-8:]}"
    conn.execute(f"create role {role}; create role {owner}".encode())
    try:
        call(conn, "grant_access", "reader", role)
        # As an administrator does with all tables. Functions and views read with their owner's rights.
        for name in ("jobs", "queues", "audit", "limits"):
            conn.execute(f"alter table pgqueue.{name} enable row level security".encode())
        conn.execute("create policy all_of_it on pgqueue.limits for select using (true)")
        rows = "select severity, evidence, remedy from pgqueue.doctor() where subject = 'row level security'"
        [(severity, evidence, remedy)] = conn.execute(rows).fetchall()
        assert severity == "warning"
        assert "is on for audit, queues, without a policy: readers and operators see them as empty" in evidence
        conn.execute(remedy.encode())
        assert conn.execute(rows).fetchall() == []
        conn.execute(f"alter table pgqueue.jobs owner to {owner}".encode())
        conn.execute("alter table pgqueue.jobs force row level security")
        [(severity, evidence, remedy)] = conn.execute(rows).fetchall()
        assert (severity, "forced on jobs" in evidence) == ("critical", True)
        conn.execute(remedy.encode())
        assert conn.execute(rows).fetchall() == []
    finally:
        conn.execute(f"reassign owned by {owner} to current_user; drop owned by {owner}, {role}".encode())
        conn.execute(f"drop role {owner}, {role}".encode())


def test_a_job_that_costs_more_than_the_limit_of_its_prefix(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "limit_key", "acme*", rate=10, per="1 min")
    for cost in (5, 20):
        enqueue(conn, limit_key="acme:x", cost=cost)
    reserve(conn, 2)
    assert findings(conn)["limit"] == (
        "warning",
        "limit_key:acme*",
        "pgqueue limits set limit_key 'acme*' --rate 20",
    )
