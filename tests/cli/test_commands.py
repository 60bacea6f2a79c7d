"""Each command: what it does, what it prints, with what it exits."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import __version__
from pgqueue.schema import bundled
from tests.calls import call, enqueue, enqueue_many, job, maintain, reserve, reserve_one, state, value
from tests.cli.conftest import Run
from tests.databases import Database, uri
from tests.workers import environment_without_dsn


@pytest.fixture
def dead(conn: psycopg.Connection) -> int:
    """A job that failed once and for all, with an error in the form of console markup."""
    job_id = enqueue(conn, "[b]mail[/b]", max_attempts=1)
    reserved = reserve_one(conn)
    error = {"class": "IndexError", "message": "[/nothing] :boom: [red]at[0]", "traceback": "Traceback"}
    assert call(conn, "fail", reserved.id, reserved.reservation, Jsonb(error)) == "dead"
    return job_id


# enqueue


@pytest.mark.covers("G1")
def test_enqueue_prints_the_id_of_the_job(run: Run, conn: psycopg.Connection) -> None:
    done = run("enqueue", "greet", '{"name": "Ada"}')
    assert (done.code, done.err) == (0, "")
    found = job(conn, int(done.out))
    assert (found.task, found.args, found.queue, found.state) == ("greet", {"name": "Ada"}, "default", "waiting")
    assert run("enqueue", "greet", "--json").json() == {"id": found.id + 1}


def test_enqueue_takes_every_option_of_a_job(run: Run, conn: psycopg.Connection) -> None:
    done = run(
        *("enqueue", "greet", "-q", "mail", "--priority", "7", "--run-at", "2040-01-01 12:00+01"),
        *("--expires-in", "1 day", "--max-attempts", "3", "--tag", "a", "--tag", "b"),
        *("--headers", '{"trace": "x"}', "--retention", "30 days", "--json"),
    )
    assert done.code == 0, done.err
    found = job(conn, done.json()["id"])
    assert (found.queue, found.priority, found.max_attempts, found.tags) == ("mail", 7, 3, ["a", "b"])
    assert found.headers == {"trace": "x"}
    assert found.run_at.isoformat() == "2040-01-01T11:00:00+00:00"
    assert (found.expires_at - found.run_at).days == 1
    assert str(value(conn, "select retention from pgqueue.jobs")) == "30 days, 0:00:00"


def test_enqueue_sends_numbers_as_they_are_written(run: Run, conn: psycopg.Connection) -> None:
    digits = "123456789012345678901234567890"
    done = run("enqueue", "greet", f'{{"id": {digits}, "share": 0.{digits}}}', "--headers", f'{{"id": {digits}}}')
    assert done.code == 0, done.err
    stored = "select args ->> 'id' || ' ' || (args ->> 'share') || ' ' || (headers ->> 'id') from pgqueue.jobs"
    assert value(conn, stored) == f"{digits} 0.{digits} {digits}"


def test_enqueue_with_a_delay_is_for_later(run: Run, conn: psycopg.Connection) -> None:
    job_id = run("enqueue", "greet", "--delay", "2 hours", "--json").json()["id"]
    assert job(conn, job_id).run_at - job(conn, job_id).created_at == timedelta(hours=2)


def test_enqueue_takes_keys_and_reports_the_outcome_for_a_dedupe_key(run: Run, conn: psycopg.Connection) -> None:
    options = ("--key", "k", "--score", "1.5", "--limit-key", "l", "--dedupe", "d", "--dedupe-for", "1 h")
    first = run("enqueue", "greet", *options, "--delay", "1 h", "--json").json()
    found = job(conn, first["id"])
    assert (found.key, float(found.score), found.limit_key, found.dedupe) == ("k", 1.5, "l", "d")
    assert first["outcome"] == "inserted"
    again = run("enqueue", "greet", '{"a": 1}', "--dedupe", "d", "--on-conflict", "merge", "--json")
    assert again.json() == {"id": first["id"], "outcome": "merged"}
    pushed = run(
        *("enqueue", "greet", "--dedupe", "d", "--on-conflict", "debounce", "--delay", "9 h"),
        *("--debounce-max", "2 h", "--json"),
    )
    assert pushed.json() == {"id": first["id"], "outcome": "debounced"}
    assert job(conn, first["id"]).run_at - found.created_at == timedelta(hours=2)
    assert int(run("enqueue", "greet", "--dedupe", "d").out) == first["id"]
    refused = run("enqueue", "greet", "--dedupe", "d", "--on-conflict", "raise")
    assert refused.code == 2
    assert f"Job {first['id']} has it" in refused.err


def test_enqueue_takes_a_retry_policy_dependencies_and_a_group(run: Run, conn: psycopg.Connection) -> None:
    first, second = (run("enqueue", "greet", "--json").json()["id"] for _ in range(2))
    group = value(conn, "select pgqueue.open_group()")
    retry = ("--retry-policy", "fixed", "--retry-delay", "7 s", "--retry-cap", "1 min", "--retry-queue", "slow")
    parents = ("--depends-on", str(first), "--depends-on", str(second), "--run-if", "finished")
    job_id = run("enqueue", "greet", *retry, *parents, "--group", str(group), "--json").json()["id"]
    found = conn.execute("select retry, run_if, group_id from pgqueue.jobs where id = %s", (job_id,)).fetchone()
    assert found is not None
    assert found[1:] == ("finished", group)
    assert found[0] == {"policy": "fixed", "delay": 7, "queue": "slow", "cap": 60}
    parent_ids = conn.execute("select parent from pgqueue.dependencies where child = %s order by 1", (job_id,))
    assert [each for [each] in parent_ids] == [first, second]
    refused = run("enqueue", "greet", "--depends-on", "0")
    assert refused.code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["greet", "--on-conflict", "skip"], "on_conflict was given without dedupe"),
        (["greet", "--score", "high"], 'invalid input syntax for type numeric: "high"'),
        (["greet", "Ada"], "ARGS is not JSON"),
        (["greet", "[1]"], "ARGS is not a JSON object; give named arguments"),
        (["greet", "--headers", "[1]"], "--headers is not a JSON object"),
        (["greet", "--delay", "soon"], 'delay: invalid input syntax for type interval: "soon"; give an interval'),
        (["greet", "--timeout", "5 min", "--retention", "x"], 'retention: invalid input syntax for type interval: "x"'),
        (["greet", "--run-at", "then"], 'run_at: invalid input syntax for type timestamp with time zone: "then"'),
        (["greet", "--delay", "1 h", "--run-at", "2040-01-01"], "run_at and delay were both given"),
        (["greet", "--priority", "101"], "priority must be between -100 and 100: It is 101; Give priority"),
        (["greet", "-q", "x" * 129], "queue must be 1 to 128 bytes long"),
        (["x" * 129], "task must be 1 to 128 bytes long"),
        (["greet", "--retention", "-1 s"], "retention must be between zero and two years"),
    ],
)
def test_enqueue_refuses_in_one_line_with_exit_code_2(
    arguments: list[str], said: str, run: Run, conn: psycopg.Connection
) -> None:
    done = run("enqueue", *arguments)
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert line.startswith("pgqueue: ")
    assert said in line
    assert value(conn, "select count(*) from pgqueue.jobs") == 0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("jobs", "list", "--since", "x"), "since"),
        (("jobs", "list", "--since", "2 hours", "--until", "3 x"), "until"),
        (("jobs", "retry", "--created-after", "2 x", "--yes"), "created_after"),
        (("jobs", "retry", "--finished-before", "then", "--yes"), "finished_before"),
        (("limits", "set", "task", "t", "--rate", "1", "--per", "x", "--create"), "per"),
        (("queues", "set", "mail", "--retention-dead", "x", "--create"), "retention_dead"),
        (("tasks", "set", "t", "--retry-delay", "1 s", "--timeout", "x", "--create"), "timeout"),
        (("limits", "pause", "limit_key", "a", "--for", "banana"), "for"),
        (("queues", "pause", "default", "--for", "banana"), "for"),
        (("limits", "throttle", "limit_key", "a", "soon"), "delay"),
        (("breakers", "set", "limit_key", "a", "--pause", "long"), "pause"),
    ],
)
def test_an_interval_or_an_instant_that_cannot_be_read_is_named(
    arguments: tuple[str, ...], name: str, run: Run
) -> None:
    done = run(*arguments)
    assert (done.code, done.err.startswith(f"pgqueue: {name}: invalid input syntax for type ")) == (2, True), done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("queues", "set", "default", "--weight", 99999999999), "weight: integer out of range"),
        (("limits", "set", "limit_key", "a", "--max-executing", 99999999999), "max_executing: integer out of range"),
        (("shares", "set", "a", 99999999999), "weight: integer out of range"),
        (("jobs", "show", 2**63), "9223372036854775808: bigint out of range"),
        (("jobs", "kill", 1, 2**63), "9223372036854775808: bigint out of range"),
    ],
)
def test_a_number_that_is_out_of_range_is_named(arguments: tuple[object, ...], said: str, run: Run) -> None:
    done = run(*arguments)
    assert (done.code, done.err.startswith(f"pgqueue: {said}")) == (2, True), done.err
    assert "give a whole number from -" in done.err


def test_a_pause_that_would_be_over_is_refused_by_the_name_of_its_option(run: Run) -> None:
    done = run("queues", "pause", "default", "--for", "-1 hour")
    assert (done.code, "a pause must end in the future" in done.err, "--for" in done.err) == (2, True, True)


@pytest.mark.parametrize("arguments", [["--priority", "high"], ["enqueue"], ["nonsense"], ["jobs", "show", "x"]])
def test_a_usage_error_is_exit_code_2_without_a_traceback(arguments: list[str], run: Run) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert "Usage" in done.err
    assert "Traceback" not in done.err


# status


def test_status_shows_queues_workers_and_maintenance(run: Run, conn: psycopg.Connection, dead: int) -> None:
    enqueue(conn, queue="mail")
    enqueue(conn, queue="mail", delay="1 hour")
    call(conn, "pause_queue", "mail")
    call(conn, "hello", "worker-1", ["mail"], Jsonb({"version": "9.9"}))
    maintain(conn)
    done = run("status")
    assert (done.code, done.err) == (0, "")
    for part in (
        "mail (paused)",
        "total",
        "worker-1",
        "9.9",
        "Maintenance last ran 0 s ago",
        "0 lapsed leases taken back so far",
    ):
        assert part in done.out
    numbers = run("status", "--json").json()
    assert (numbers["total"]["waiting"], numbers["total"]["scheduled"], numbers["total"]["dead"]) == (2, 1, 1)
    assert [each["queue"] for each in numbers["queues"]] == ["default", "mail"]
    assert numbers["workers"][0]["worker"] == "worker-1"


@pytest.mark.parametrize("info", ["[1]", '"me"', "null", "1"])
def test_status_shows_a_worker_whose_info_is_no_object(info: str, run: Run, conn: psycopg.Connection) -> None:
    value(conn, "select pgqueue.hello('stranger', null, %s::jsonb)", info)
    done = run("status")
    assert (done.code, done.err) == (0, "")
    assert "stranger" in done.out


def test_status_of_an_unused_queue_says_so(run: Run) -> None:
    done = run("status")
    assert done.code == 0
    assert "No worker is registered." in done.out
    assert "Maintenance last ran never" in done.out


def test_status_shows_a_step_of_maintenance_that_fails(run: Run, conn: psycopg.Connection) -> None:
    conn.execute("drop function pgqueue._tidy_lanes(timestamptz)")
    maintain(conn)
    assert "Maintenance step tidy_lanes fails since 20" in run("status").out


# jobs


def test_jobs_list_shows_the_newest_first_and_filters(run: Run, conn: psycopg.Connection, dead: int) -> None:
    a = enqueue(conn, "a", queue="one")
    b = enqueue(conn, "b", queue="two")
    assert [each["id"] for each in run("jobs", "list", "--json").json()] == [b, a, dead]
    assert [each["id"] for each in run("jobs", "list", "-q", "one", "--json").json()] == [a]
    assert [each["id"] for each in run("jobs", "list", "-t", "b", "--json").json()] == [b]
    assert [each["id"] for each in run("jobs", "list", "-s", "dead", "--json").json()] == [dead]
    assert [each["id"] for each in run("jobs", "list", "-n", "1", "--json").json()] == [b]
    assert run("jobs", "list", "-q", "nowhere", "--json").json() == []


def test_jobs_are_listed_in_the_order_asked_for(run: Run, conn: psycopg.Connection, dead: int) -> None:
    late = enqueue(conn, "b", queue="two", delay="2 h", tags=["vip"])
    soon = enqueue(conn, "a", queue="one", delay="1 h", tags=["vip"])
    now = enqueue(conn, "a", queue="two")

    def listed(*arguments: object) -> list[int]:
        return [each["id"] for each in run("jobs", "list", *arguments, "--json").json()]

    assert listed("--order", "oldest") == [dead, late, soon, now]
    assert listed("--order", "oldest", "-n", 2) == [dead, late]
    assert listed("--order", "due") == [now, soon, late]
    assert listed("--order", "due", "--tag", "vip") == [soon, late]
    assert listed("--order", "due", "-q", "two", "-t", "b") == [late]
    assert listed("--order", "due", "--where", "queue:two") == [now, late]
    assert listed("--order", "oldest", "-s", "dead") == [dead]
    assert listed("--order", "oldest", "--since", "1 hour ago") == [dead, late, soon, now]
    assert listed("--order", "oldest", "--until", "1 hour") == []
    assert listed("--order", "oldest", "--since", "2000-01-01", "--id", soon) == [soon]
    refused = run("jobs", "list", "--order", "best")
    assert (refused.code, "newest, due, oldest" in refused.err) == (2, True)


def test_jobs_list_shows_names_and_errors_as_they_are(run: Run, dead: int) -> None:
    done = run("jobs", "list")
    assert (done.code, done.err) == (0, "")
    assert "[b]mail[/b]" in done.out
    assert "IndexError: [/nothing] :boom: [red]at[0]" in done.out


def test_jobs_list_refuses_a_state_that_there_is_not(run: Run) -> None:
    done = run("jobs", "list", "-s", "finished")
    assert done.code == 2
    assert "there is no state 'finished'; states: waiting," in done.err


def test_jobs_show_prints_everything_about_a_job(run: Run, dead: int) -> None:
    done = run("jobs", "show", dead)
    assert (done.code, done.err) == (0, "")
    for part in ("[b]mail[/b]", "dead", "[/nothing] :boom: [red]at[0]", "Traceback"):
        assert part in done.out
    found = run("jobs", "show", dead, "--json").json()
    assert (found["id"], found["state"], found["errors"][0]["class"]) == (dead, "dead", "IndexError")


def test_a_number_that_only_postgresql_can_hold_is_shown(run: Run, conn: psycopg.Connection) -> None:
    job_id = value(conn, """select pgqueue.enqueue('t', '{"n": 1e30}')""")
    assert run("jobs", "show", job_id, "--json").json()["args"] == {"n": 10**30}
    assert run("jobs", "list", "--json").code == 0
    assert run("jobs", "show", job_id).code == 0


@pytest.mark.parametrize(
    "args", ['{"n": 1e5000}', '{"deep":' * 3000 + "1" + "}" * 3000, '{"deep":' * 960 + "1" + "}" * 960]
)
def test_what_python_cannot_read_is_shown_all_the_same(args: str, run: Run, conn: psycopg.Connection) -> None:
    job_id = value(conn, "select pgqueue.enqueue('t', %s::jsonb)", args)
    value(conn, "select pgqueue.schedule('s', '@daily', 't', %s::jsonb)", args)
    for command in (["jobs", "list"], ["jobs", "show", job_id], ["schedules", "show", "s"]):
        done = run(*command)
        assert (done.code, done.err) == (0, "")
        assert run(*command, "--json").out.count(value(conn, "select args::text from pgqueue.jobs")) == 1
    assert str(job_id) in run("jobs", "list").out


def test_no_text_of_a_job_reaches_a_terminal_as_a_command(run: Run, conn: psycopg.Connection) -> None:
    clear = "\x1b[2J\x9b2J\b"
    job_id = enqueue(conn, clear, {"a": "\x9b2J"}, queue=clear)
    for command in (["status"], ["jobs", "list"], ["jobs", "show", job_id]):
        done = run(*command)
        assert done.code == 0
        assert "\\x1b[2J\\x9b2J\\x08" in done.out
        assert not {"\x1b", "\x9b", "\b"} & {*done.out}
    assert run("jobs", "explain", job_id).code == 0
    refused = run("enqueue", "t", "--delay", clear)
    assert refused.code == 2
    assert "\\x1b[2J" in refused.err


def test_jobs_retry_runs_a_dead_job_again(run: Run, conn: psycopg.Connection, dead: int) -> None:
    done = run("jobs", "retry", dead)
    assert (done.code, done.out) == (0, f"Job {dead}: retried\n")
    assert state(conn, dead) == "waiting"
    again = run("jobs", "retry", dead, "--json")
    assert (again.code, again.out) == (1, "")
    assert f"Job {dead} is waiting: dead, cancelled and failed ones are retried" in again.err


@pytest.mark.covers("A6")
def test_jobs_cancel_is_effective_once(run: Run, conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    assert run("jobs", "cancel", job_id, "--json").json() == {"id": job_id, "outcome": "cancelled"}
    again = run("jobs", "cancel", job_id)
    assert (again.code, again.out, again.err) == (1, "", f"Job {job_id} is cancelled: there is nothing to cancel\n")
    running = enqueue(conn)
    reserve_one(conn)
    assert run("jobs", "cancel", running).out == f"Job {running}: requested\n"


def test_jobs_delete_removes_what_does_not_run(run: Run, conn: psycopg.Connection, dead: int) -> None:
    running = enqueue(conn)
    reserve_one(conn)
    assert run("jobs", "delete", dead, "--json").json() == {"id": dead, "outcome": "deleted"}
    assert state(conn, dead) is None
    refused = run("jobs", "delete", running)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == f"Job {running} is executing: cancel it before you delete it\n"
    assert state(conn, running) == "executing"


def failed(conn: psycopg.Connection, count: int) -> list[int]:
    job_ids = enqueue_many(conn, count)
    for held in reserve(conn, count):
        call(conn, "fail", held.id, held.reservation, retry_in="1 day")
    return job_ids


def test_a_bulk_command_that_is_refused_says_so_in_one_line(run: Run) -> None:
    refused = run("jobs", "run", "--key", "k", "--yes")
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 1
    assert run("jobs", "run", "--queue", "q", "--yes").err == ""


@pytest.mark.covers("L9")
def test_jobs_are_run_killed_retried_cancelled_and_deleted_by_filter_in_chunks(
    run: Run, conn: psycopg.Connection
) -> None:
    job_ids = failed(conn, 7)
    by = ("--queue", "default", "--chunk", "2", "--yes")
    done = run("jobs", "run", "--state", "failed", *by)
    assert (done.code, done.out) == (0, "7 jobs due now\n")
    assert run("jobs", "kill", "--state", "failed", *by, "--json").json() == {
        "action": "kill",
        "changed": 7,
        "skipped": 0,
    }
    assert run("jobs", "retry", *by).out == "7 jobs retried\n"
    assert run("jobs", "cancel", "--task", "t", *by).out == "7 jobs cancelled or asked to stop\n"
    assert run("jobs", "delete", "--state", "cancelled", *by).out == "7 jobs deleted\n"
    assert [state(conn, job_id) for job_id in job_ids] == [None] * 7
    assert run("jobs", "delete", "--state", "cancelled", *by).out == "0 jobs deleted\n"


def test_jobs_named_by_their_ids_are_changed_without_a_question(run: Run, conn: psycopg.Connection) -> None:
    first, second, third = failed(conn, 3)
    assert run("jobs", "run", first).out == "1 job due now\n"
    assert run("jobs", "kill", first, second).out == "2 jobs dead\n"
    assert run("jobs", "delete", first, second).out == "2 jobs deleted\n"
    gone = run("jobs", "kill", first, second)
    assert gone.code == 1
    missing = "or its history has expired\n"
    assert gone.out == f"0 jobs dead; there is no job {first}, {second}, {missing}"
    assert run("jobs", "retry", first, third, "--yes").out == (
        f"0 jobs retried; 1 skipped: not dead or cancelled; there is no job {first}, {missing}"
    )
    assert run("jobs", "run", first, third, "--queue", "mail", "--state", "failed").out == (
        f"0 jobs due now; 1 skipped: not failed, queue mail; there is no job {first}, {missing}"
    )
    many = run("jobs", "retry", *range(900, 912))
    assert many.code == 1
    assert many.out == f"0 jobs retried; there is no job {', '.join(map(str, range(900, 910)))}, ..., {missing}"
    assert state(conn, third) == "failed"


def test_json_counts_what_was_skipped_and_names_what_there_is_not(run: Run, conn: psycopg.Connection) -> None:
    first, second = failed(conn, 2)
    assert run("jobs", "kill", first, "--json").json() == {
        "action": "kill", "changed": 1, "skipped": 0, "unknown": []
    }  # fmt: skip
    assert run("jobs", "kill", second, first, 999, "--json").json() == {
        "action": "kill", "changed": 1, "skipped": 1, "unknown": [999]
    }  # fmt: skip
    update = ("jobs", "update", first, second, 998, "--priority", 3)
    assert run(*update).out.startswith("0 jobs changed; 2 skipped")
    assert run(*update, "--json").json() == {
        "action": "update", "changed": 0, "skipped": 2, "unknown": [998]
    }  # fmt: skip
    assert "unknown" not in run("jobs", "retry", "--state", "dead", "--yes", "--json").json()


def test_a_bulk_command_asks_first(run: Run, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    job_ids = enqueue_many(conn, 2)
    for answer, code, expected in (("n\n", 130, "waiting"), ("", 130, "waiting"), ("y\n", 0, "cancelled")):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        done = run("jobs", "cancel", "--queue", "default", "--state", "waiting")
        assert done.code == code
        assert "Cancel 2 jobs by: queue default, state waiting?" in done.err
        assert {state(conn, job_id) for job_id in job_ids} == {expected}


def test_a_bulk_command_without_a_filter_is_refused(run: Run, conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    for command in ("run", "kill", "cancel", "delete", "retry"):
        refused = run("jobs", command, "--yes")
        assert refused.code == 2
        assert "--everything" in refused.err
    assert run("jobs", "delete", "--queue", "default", "--yes").code == 2
    assert state(conn, job_id) == "waiting"
    assert run("jobs", "delete", "--everything", "--yes").out == "1 job deleted\n"


def test_an_empty_where_is_no_filter_that_was_left_out(run: Run, conn: psycopg.Connection) -> None:
    """As of a shell variable that is empty: the other options alone would act on a whole queue."""
    job_id = enqueue(conn)
    for command in ("run", "kill", "cancel", "delete", "retry", "update"):
        other = ("--priority", 3) if command == "update" else ("--queue", "default")
        refused = run("jobs", command, *other, "--where", "", "--yes")
        assert (refused.code, "the filter is empty" in refused.err) == (2, True), command
    found = job(conn, job_id)
    assert (found.state, found.priority) == ("waiting", 0)


@pytest.mark.parametrize("action", ["run", "kill", "retry", "cancel", "delete"])
def test_an_action_without_a_filter_suggests_one_that_it_takes(action: str, run: Run) -> None:
    refused = run("jobs", action)
    assert (refused.code, f"no job to {action} was named" in refused.err) == (2, True)
    [suggested] = re.findall(r"--state \w+", refused.err)
    assert run("jobs", action, *suggested.split(), "--yes").code == 0


def test_queues_purge_deletes_what_waits(run: Run, conn: psycopg.Connection) -> None:
    enqueue_many(conn, 3)
    other = enqueue(conn, queue="other")
    assert run("queues", "purge", "default", "--yes", "--json").json() == {
        "action": "purge",
        "changed": 3,
        "skipped": 0,
    }
    assert state(conn, other) == "waiting"
    assert run("queues", "purge", "default", "--yes").code == 0
    mistyped = run("queues", "purge", "othr", "--yes")
    assert (mistyped.code, mistyped.out, mistyped.err) == (1, "", "There is no queue othr\n")


def test_jobs_explain_says_why_a_job_is_not_running(run: Run, conn: psycopg.Connection) -> None:
    job_id = enqueue(conn, delay="1 hour")
    done = run("jobs", "explain", job_id)
    assert done.out.startswith(f"Job {job_id}: waiting; not_due\nit is to run at ")
    found = run("jobs", "explain", job_id, "--json").json()
    assert (found["job_id"], found["reason"], found["behind"]) == (job_id, "not_due", None)


# limits


def test_a_task_is_paused_throttled_listed_and_resumed(run: Run, conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "call_api")
    assert (
        run("limits", "pause", "task", "call_api", "--for", "1 hour", "--reason", "down").out
        == "task call_api: paused\n"
    )
    assert run("limits", "pause", "task", "call_api", "--for", "1 s").out == "task call_api: unchanged\n"
    throttled = run("limits", "throttle", "limit_key", "api", "30 s", "--json").json()
    assert throttled == {"kind": "limit_key", "target": "api", "changed": True}
    listed = run("limits", "pauses", "--json").json()
    assert [(each["target"], each["source"], each["reason"]) for each in listed] == [
        ("api", "throttle", None),
        ("call_api", "operator", "down"),
    ]
    assert "down" in run("limits", "pauses").out
    assert run("limits", "resume", "limit_key", "api").out == "limit_key api: unchanged\n"
    assert run("limits", "resume", "limit_key", "api", "--source", "throttle").out == "limit_key api: resumed\n"
    assert run("limits", "resume", "task", "call_api").out == "task call_api: resumed\n"
    assert run("limits", "pauses", "--json").json() == []


def test_shares_are_set_listed_and_dropped(run: Run) -> None:
    assert run("shares", "set", "tenant:5", 3).out == "Share of tenant:5: set\n"
    assert run("shares", "set", "tenant:5", 3).out == "Share of tenant:5: unchanged\n"
    assert "tenant:5" in run("shares", "list").out
    assert run("shares", "list", "--json").json() == [{"limit_key": "tenant:5", "weight": 3}]
    done = run("shares", "drop", "tenant:5", "--json").json()
    assert done == {"limit_key": "tenant:5", "weight": None, "changed": True}
    gone = run("shares", "drop", "tenant:5")
    assert (gone.code, gone.err) == (1, "There is no share of tenant:5\n")


def test_a_queue_is_made_fair_and_plain_again(run: Run, conn: psycopg.Connection) -> None:
    assert run("queues", "set", "mail", "--fair-by", "limit_key", "--create").out == "Queue mail: set\n"
    assert call(conn, "_lane_key", "mail", "a") is not None
    assert run("queues", "set", "mail", "--max-share", 0.9).out == "Queue mail: set\n"
    assert value(conn, "select max_share from pgqueue.queues") == 0.9
    assert run("queues", "set", "mail", "--reset", "max-share").out == "Queue mail: set\n"
    assert run("queues", "set", "mail", "--reset", "fair-by").out == "Queue mail: set\n"
    assert call(conn, "_lane_key", "mail", "a") is None


def test_limits_are_set_listed_and_dropped(run: Run, conn: psycopg.Connection) -> None:
    assert run("limits", "set", "task", "[b]t[/b]", "-n", 3, "--create").out == "Limit task [b]t[/b]: set\n"
    assert run("limits", "set", "task", "[b]t[/b]", "-n", 3).out == "Limit task [b]t[/b]: unchanged\n"
    done = run("limits", "set", "limit_key", "acme*", "--rate", 5, "--per", "1 min", "--json")
    assert done.json() == {"kind": "limit_key", "target": "acme*", "changed": True}
    listed = run("limits", "list")
    assert "5 per 00:01:00" in listed.out
    assert "[b]t[/b]" in listed.out
    assert [each["target"] for each in run("limits", "list", "--json").json()] == ["acme*", "[b]t[/b]"]
    assert run("limits", "drop", "limit_key", "acme*").out == "Limit limit_key acme*: dropped\n"
    gone = run("limits", "drop", "limit_key", "acme*")
    assert (gone.code, gone.err) == (1, "There is no limit limit_key acme*\n")
    refused = run("limits", "set", "task", "t", "--create")
    assert refused.code == 2
    assert "max_executing" in refused.err


def test_a_limit_of_units_is_set_listed_and_dropped_by_parts(run: Run, conn: psycopg.Connection) -> None:
    units = ("--rate", 90000, "--per", "1 min", "--burst", 10000, "--max-cost", 20000)
    assert run("limits", "set", "limit_key", "llm", *units).out == "Limit limit_key llm: set\n"
    listed = run("limits", "list").out
    assert "20000 units" in listed
    assert "90000 per 00:01:00, burst 10000" in listed
    assert run("limits", "drop", "limit_key", "llm", "--part", "burst").out == "Limit limit_key llm: burst dropped\n"
    job_id = int(run("enqueue", "ask", "--limit-key", "llm", "--cost", 1200).out)
    assert value(conn, "select cost from pgqueue.jobs where id = %s", job_id) == 1200


def test_a_queue_is_paused_for_a_time(run: Run, conn: psycopg.Connection) -> None:
    enqueue(conn, queue="mail")
    assert run("queues", "pause", "mail", "--for", "1 hour", "--reason", "deploy").out == "Queue mail: paused\n"
    assert value(conn, "select round(extract(epoch from until - at)) from pgqueue.pauses") == 3600


def test_breakers_are_set_listed_closed_and_removed(run: Run, conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "charge")
    assert run("breakers", "set", "task", "charge", "--of", 1).out == "Breaker task charge: set\n"
    assert run("breakers", "set", "task", "charge", "--of", 1).out == "Breaker task charge: unchanged\n"
    assert "closed" in run("breakers", "list").out
    enqueue(conn, "charge")
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation)
    assert "1 of 1 attempts failed" in run("breakers", "list").out
    [breaker] = run("breakers", "list", "--json").json()
    assert [each["state"] for each in breaker["opened"]] == ["open"]
    assert run("breakers", "close", "task", "charge").out == "Breaker task charge: closed\n"
    assert run("breakers", "close", "task", "charge").out == "Breaker task charge: unchanged\n"
    assert run("breakers", "remove", "task", "charge").out == "Breaker task charge: removed\n"
    for command in ("remove", "close"):
        gone = run("breakers", command, "task", "charge")
        assert (gone.code, gone.err) == (1, "There is no breaker task charge\n")
    run("breakers", "set", "limit_key", "tenant:*")
    assert run("breakers", "close", "limit_key", "tenant:5").code == 0


def test_an_option_of_a_breaker_that_is_left_out_keeps_its_value(run: Run, conn: psycopg.Connection) -> None:
    run("breakers", "set", "task", "charge", "--failures", 0.1, "--of", 50, "--create")
    assert run("breakers", "set", "task", "charge", "--pause", "5 min", "--create").code == 0
    [breaker] = run("breakers", "list", "--json").json()
    assert (breaker["failures"], breaker["of"], breaker["pause"]) == (0.1, 50, "00:05:00")
    refused = run("breakers", "set", "task", "charge", "--pause", "x", "--create")
    assert (refused.code, refused.err.startswith("pgqueue: pause: invalid input syntax")) == (2, True)


@pytest.mark.parametrize("command", ["show", "explain", "retry", "cancel", "delete"])
def test_a_job_that_is_not_there_is_exit_code_1(command: str, run: Run) -> None:
    done = run("jobs", command, 4711)
    assert (done.code, done.out) == (1, "")
    assert len(done.err.splitlines()) == 1


def test_an_id_beyond_64_bits_is_no_traceback(run: Run) -> None:
    done = run("jobs", "show", 10**30)
    assert done.code in (1, 2)
    assert len(done.err.splitlines()) == 1


# grant


def test_grant_and_revoke(run: Run, conn: psycopg.Connection) -> None:
    role = f"clerk_{conn.info.backend_pid}"
    conn.execute(f"create role {role}".encode())
    try:
        can = "select has_function_privilege(%s, oid, 'execute') from pg_proc where proname = 'enqueue'"
        assert run("grant", "producer", role).out == f"{role} is now a producer.\n"
        assert value(conn, can, role) is True
        granted = {"role": role, "kind": "producer", "granted": True, "changed": False}
        assert run("grant", "producer", role, "--json").json() == granted
        assert run("grant", "reader", role, "--json").json() == {**granted, "kind": "reader", "changed": True}
        revoked = {"role": role, "kind": "producer", "granted": False, "changed": True}
        assert run("grant", "producer", role, "--revoke", "--json").json() == revoked
        assert value(conn, can, role) is False
        assert run("grant", "producer", role, "--revoke", "--json").json() == {**revoked, "changed": False}
    finally:
        conn.execute(f"drop owned by {role}".encode())
        conn.execute(f"drop role {role}".encode())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["emperor", "postgres"], "kind is unknown: It is 'emperor'"), (["reader", "nobody_we_know"], "role does not ex")],
)
def test_grant_refuses_what_it_does_not_know(arguments: list[str], said: str, run: Run) -> None:
    done = run("grant", *arguments)
    assert done.code == 2
    assert said in done.err


# demo


def test_demo_serves_every_order_exactly_once(run: Run, tmp_path: Path) -> None:
    done = run("demo", "--yes", "--orders", 12, "--directory", tmp_path / "receipts", "--json")
    assert done.code == 0, done.err
    verdict = done.json()
    assert verdict["ok"] is True
    # Every fifth order was rolled back; one job failed twice, one is dead.
    assert (verdict["orders"], verdict["receipts"], verdict["missing"], verdict["unexpected"]) == (10, 10, [], [])
    assert (verdict["retried_and_succeeded"], verdict["dead"]) == (1, 1)
    assert len(list((tmp_path / "receipts").glob("order-*.txt"))) == 10
    assert {row["worker"] for row in verdict["ran"]} <= {"worker 1", "worker 2"}
    # One worker was killed, and the other one ran its job when the lease had lapsed.
    killed = verdict["killed"]
    assert {killed["killed"], killed["worker"]} == {"worker 1", "worker 2"}
    assert killed["state"] == "succeeded"
    assert killed["seconds"] >= 3
    # A workflow waited for an event, and went on.
    workflow = verdict["workflow"]
    assert (workflow["state"], workflow["steps"][0], workflow["steps"][-1]) == ("succeeded", "charge", "ship")
    assert "waits for event packed:" in workflow["waited"]
    # What the queue itself takes, and not the start of a worker.
    assert all(row["median_wait_ms"] is None or row["median_wait_ms"] < 2000 for row in verdict["ran"])


@pytest.mark.long
def test_the_commands_that_the_demo_prints_work_as_typed(run: Run, tmp_path: Path, database: Database) -> None:
    done = run(
        "demo",
        "-y",
        "--orders",
        7,
        "--directory",
        tmp_path / "receipts",
        "--dsn",
        uri(database.dsn, application_name="demo"),
    )
    assert done.code == 0, done.err
    printed = re.findall(r"^  (.*pgqueue.*)$", done.out, re.MULTILINE)
    assert len(printed) == 3
    for command in printed:
        ran = subprocess.run(
            ["sh", "-c", command], env=environment_without_dsn(), capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, ""), command


def test_demo_refuses_a_directory_that_cannot_be(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = run("demo", "--yes", "--directory", tmp_path / "file" / "receipts")
    assert (refused.code, refused.out) == (2, "")
    assert "Not a directory; give another --directory" in refused.err


def test_version_tells_package_schema_and_commit(run: Run, tmp_path: Path) -> None:
    package = re.escape(f"pgqueue {__version__}, schema {bundled.revisions()[-1]}, commit ")
    assert re.fullmatch(rf"{package}([0-9a-f]{{12}}|unknown)\n", run("--version").out)

    # As it is installed, without a repository.
    checkout = bundled.directory("sql").parent
    for name in ("pgqueue", "migrations"):
        shutil.copytree(checkout / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    ask = [sys.executable, "-m", "pgqueue", "--version"]
    for commit, shown in ((None, "unknown"), ("0123456789abcdef\n", "0123456789ab")):
        if commit:
            (tmp_path / "pgqueue" / "commit.txt").write_text(commit)
        done = subprocess.run(ask, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.endswith(f", commit {shown}\n")


def test_workers_are_made_quiet_resumed_and_stopped(run: Run, conn: psycopg.Connection) -> None:
    call(conn, "hello", "w1")
    assert "asked to be quiet" in run("workers", "quiet", "w1").out
    assert run("workers", "quiet", "w1").code == 1
    assert "to be quiet" in run("workers", "list").out
    call(conn, "worker_command", "w1", "quiet")
    assert " quiet " in run("workers", "list").out
    assert run("workers", "resume", "w1", "--json").json() == {"worker": "w1", "outcome": "asked to resume"}
    assert run("workers", "resume", "w1").code == 1
    assert "asked to stop" in run("workers", "stop", "w1").out
    assert run("workers", "stop", "nobody").code == 1


def test_a_schedule_is_set_and_reset(run: Run, conn: psycopg.Connection) -> None:
    call(conn, "schedule", "nightly", "0 3 * * *", "report")
    assert run("schedules", "set", "nightly", "--expression", "0 4 * * *", "--timezone", "Europe/Berlin").code == 0
    assert "0 4 * * * (Europe/Berlin)" in run("schedules", "list").out
    assert run("schedules", "set", "nightly", "--reset", "expression", "--reset", "timezone").code == 0
    assert "0 3 * * * (UTC)" in run("schedules", "list").out
    again = run("schedules", "set", "nightly", "--reset", "expression", "--json")
    assert (again.code, again.json()) == (0, {"name": "nightly", "outcome": "unchanged"})
    idle = run("schedules", "set", "nightly")
    assert (idle.code, "change what?" in idle.err) == (2, True)
    assert run("schedules", "set", "nightly", "--expression", "0 4").code == 2


@pytest.mark.parametrize(
    "command",
    [
        *("jobs show 99", "jobs explain 99", "jobs logs 99", "jobs stack 99", "jobs retry 99", "jobs cancel 99"),
        *("jobs delete 99", "jobs update 99 --priority 3"),
        *("schedules show 99", "schedules pause 99", "schedules resume 99", "schedules remove 99", "schedules run 99"),
        *("schedules set 99 --timezone UTC", "workers quiet 99", "workers resume 99", "workers stop 99"),
    ],
)
def test_each_command_on_what_does_not_exist_says_so(command: str, run: Run) -> None:
    done = run(*command.split())
    kind = command.split()[0].removesuffix("s")
    assert (done.code, done.out, done.err) == (1, "", f"There is no {kind} 99\n")


def test_a_schedule_that_is_so_already_is_unchanged(run: Run, conn: psycopg.Connection) -> None:
    call(conn, "schedule", "nightly", "0 3 * * *", "report")
    unchanged = "Schedule nightly: unchanged\n"
    resumed = run("schedules", "resume", "nightly")
    assert (resumed.code, resumed.out) == (0, unchanged)
    assert run("schedules", "pause", "nightly").out == "Schedule nightly: paused\n"
    paused = run("schedules", "pause", "nightly")
    assert (paused.code, paused.out) == (0, unchanged)
    assert run("schedules", "remove", "nightly").out == "Schedule nightly: removed\n"
