"""What an operator sees: jobs, queues, tasks and workers as tables and pages, in 80 columns."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.cli.examples import EXAMPLES
from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, maintain, reserve_one, state, value
from tests.cli.commands import commands
from tests.cli.conftest import Run
from tests.databases import Database
from tests.facts import wait_until
from tests.workers import environment_without_dsn

TRACEBACK = (
    'Traceback (most recent call last):\n  File "shop.py", line 3, in f\n    boom()\nValueError: no such address'
)


@pytest.fixture
def jobs(conn: psycopg.Connection) -> dict[str, int]:
    """A job of each kind, by what it is."""
    found = {
        "mail": enqueue(conn, "send_email", {"to": "a@b.c"}, queue="mail", key="k", tags=["welcome"]),
        "dead": enqueue(conn, "resize"),
        "failed": enqueue(conn, "resize"),
        "later": enqueue(conn, "report", delay="2 hours"),
    }
    error = {"class": "ValueError", "message": "no such address", "traceback": TRACEBACK}
    for retry in (False, True):
        held = reserve_one(conn, "w1", queues=["default"])
        call(conn, "fail", held.id, held.reservation, Jsonb(error), retry=retry)
    held = reserve_one(conn, "host-17.example.com:3345:abcdef01", queues=["mail"])
    call(conn, "progress", held.id, held.reservation, 3, 10, "half")
    return found


def ids(run: Run, *options: object) -> list[int]:
    done = run("jobs", "list", "--json", *options)
    assert done.code == 0, done.err
    return [each["id"] for each in done.json()]


def test_jobs_are_found_by_all_that_is_known_of_them(run: Run, jobs: dict[str, int], conn: psycopg.Connection) -> None:
    assert ids(run, "--key", "k") == ids(run, "--tag", "welcome") == [jobs["mail"]]
    assert ids(run, "--worker", "w1") == [jobs["failed"], jobs["dead"]]
    assert ids(run, "--worker", "w1", "--state", "dead") == [jobs["dead"]]
    assert ids(run, "--error", "valueerror: NO SUCH") == [jobs["failed"], jobs["dead"]]
    assert ids(run, "--error", "%") == []
    assert ids(run, "--id", jobs["mail"], "--id", jobs["later"]) == [jobs["later"], jobs["mail"]]
    assert ids(run, "--since", "1 hour") == sorted(jobs.values(), reverse=True)
    assert ids(run, "--since", "2000-01-01", "--until", "1 hour") == []
    for order in ("newest", "oldest"):
        assert ids(run, "--since", "1 dec 2999", "--order", order) == []
        assert ids(run, "--until", "24 oct 2000", "--order", order) == []
    before = value(conn, "select created_at::text from pgqueue.jobs where id = %s", jobs["failed"])
    assert ids(run, "--until", before) == [jobs["dead"], jobs["mail"]]
    refused = run("jobs", "list", "--since", "soon")
    assert refused.code == 2
    assert "soon" in refused.err


def test_executing_jobs_show_worker_and_progress_and_others_have_no_such_columns(
    run: Run, jobs: dict[str, int]
) -> None:
    heading, line = run("jobs", "list", "--state", "executing").out.splitlines()
    assert heading.split() == ["id", "task", "queue", "state", "attempts", "when", "worker", "progress"]
    assert re.search(r"for \d+ s +host-17\.example\.com:3345:abcdef01 +3/10 half$", line)
    heading, line = run("jobs", "list", "--state", "dead").out.splitlines()
    assert heading.split() == ["id", "task", "queue", "state", "attempts", "when", "error"]
    assert re.search(r"\d+ s ago +ValueError: no such address$", line)
    assert re.search(r"in 119 min$", run("jobs", "list", "--task", "report").out.splitlines()[1])


@pytest.mark.parametrize(
    "command",
    ["jobs list", "status", "queues list", "tasks list", "workers list", "limits list", "schedules list", "help"],
)
def test_tables_fit_80_columns(
    command: str, run: Run, jobs: dict[str, int], conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "a_name_that_is_quite_long_for_a_name.of_something"
    enqueue(conn, long, queue=long)
    call(conn, "hello", f"host.example.com:{long}", [long, "mail"], Jsonb({"version": "0.1.0.dev20261224+abcdef"}))
    call(conn, "configure_task", long, max_attempts=3, timeout="5 min", retry_policy="exponential", retry_delay="1 h")
    call(conn, "set_limit", "task", long, max_executing=3, rate=5, per="1 min")
    call(conn, "schedule", long, "*/5 3-4 1,2,3 * *", long, timezone="America/Argentina/Buenos_Aires")
    call(conn, "pause_schedule", long)
    maintain(conn)
    monkeypatch.setenv("COLUMNS", "80")
    done = run(*command.split())
    assert done.code == 0
    tables = [line for line in done.out.splitlines() if not re.match(r"Worker |Maintenance |No worker ", line)]
    assert [line for line in tables if len(line) > 80] == []


def test_a_page_has_traceback_arguments_and_times_to_read(
    run: Run, jobs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        done = run("jobs", "show", jobs["dead"])
        mail = run("jobs", "show", jobs["mail"]).out
        created = run("jobs", "show", jobs["mail"], "--json").json()["created_at"]
        here = f"{datetime.fromisoformat(created).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert done.out.endswith(f"worker w1\n{TRACEBACK}\n")
    assert re.search(r"^Error, attempt 1, 20\S+ \S+ IST \(\d+ s ago\), worker w1$", done.out, re.MULTILINE)
    assert re.search(r'^args +\{\n +"to": "a@b.c"\n +\}$', mail, re.MULTILINE)
    assert re.search(rf"^created_at +{here} \(\d+ s ago\)$", mail, re.MULTILINE)
    assert re.search(r"^enqueued_by +\w+", mail, re.MULTILINE)


def test_the_numbers_of_status_add_up(run: Run, jobs: dict[str, int], conn: psycopg.Connection) -> None:
    call(conn, "cancel", enqueue(conn, "other"))
    enqueue_many(conn, 3)
    out = run("status").out
    rows = {
        line.split()[0]: line.split() for line in out.splitlines() if re.match(r"(queue|default|mail|total) ", line)
    }
    named = dict(zip(rows["queue"], rows["total"], strict=False))
    numbers = {name: int(named[name]) for name in rows["queue"][1:8]}
    assert numbers == {"ready": 3, "later": 2, "blocked": 0, "executing": 1, "live": 6, "failed": 1, "dead": 1}
    assert numbers["live"] == value(conn, "select count(*) from pgqueue.jobs")
    for column in range(1, 8):
        assert int(rows["default"][column]) + int(rows["mail"][column]) == int(rows["total"][column])
    assert "live = ready + later + blocked + executing." in out


def test_a_task_that_no_worker_has_declared_is_named(run: Run, conn: psycopg.Connection) -> None:
    job_id = enqueue(conn, "send_emial")
    # Where no task was ever declared, workers do not declare theirs.
    for command in ("jobs list", "status"):
        assert "declared" not in run(*command.split()).out
    call(conn, "declare_task", "send_email")
    enqueue(conn, "send_email")
    assert f"No worker has declared task send_emial: see pgqueue jobs explain {job_id}." in run("jobs", "list").out
    assert (
        f"No worker has declared task send_emial: see pgqueue jobs explain {job_id}."
        in run("jobs", "list", "--order", "due").out
    )
    assert "task send_email:" not in run("jobs", "list").out
    assert "No worker has declared task send_emial, and jobs of it wait: see pgqueue doctor." in run("status").out
    call(conn, "cancel", job_id)
    for command in ("jobs list", "status"):
        assert "declared" not in run(*command.split()).out


def test_a_task_whose_jobs_workers_give_back_is_named(run: Run, conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "old")
    enqueue(conn, "old")
    for _ in range(3):
        held = reserve_one(conn)
        call(conn, "release", [held.id], [held.reservation], "10 s")
        clock.advance("10 s")
    assert "Workers give jobs of task old back without an attempt: see pgqueue doctor." in run("status").out


def test_a_list_that_stops_at_its_limit_says_so(run: Run, conn: psycopg.Connection) -> None:
    enqueue_many(conn, 22)
    assert run("jobs", "list").out.endswith("\nShown: 20 jobs. There may be more: --limit N.\n")
    assert "Shown: 1 job. There may be more" in run("jobs", "list", "--limit", 1).out
    assert "may be more" not in run("jobs", "list", "--limit", 23).out
    assert len(run("jobs", "list", "--json").json()) == 20


def test_why_names_the_cause_of_each_late_queue(run: Run, conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    on_time = "No queue is late by 30 s or more, and none is stuck for 5 min or more.\n"
    assert run("why").out == on_time
    enqueue(conn, queue="mail")
    clock.advance("16 s")
    assert run("why").out.startswith(f"{on_time}mail: no_worker, late by 16 s\n    the queue has 1 job due since")
    assert run("why", "--json").json() == []
    assert run("why", "mail").out.startswith("mail: no_worker, late by 16 s\n    the queue has 1 job due since")
    call(conn, "hello", "w", ["mail"])
    call(conn, "beat", "w")
    assert run("why", "mail").out.startswith("mail: on_time\n    its oldest due job waits for 16 s\n")
    assert run("why").out == on_time
    clock.advance("3 min")
    said = run("why").out
    assert said.startswith("mail: no_worker, late by 3 min\n    the queue has 1 job due since")
    assert said.endswith("do: pgqueue worker -r MODULE --queue mail\n")
    [found] = json.loads(run("why", "mail", "--json").out)
    assert (found["queue_name"], found["cause"], found["severity"]) == ("mail", "no_worker", "critical")


def test_why_of_a_queue_that_nothing_has_is_refused_with_the_nearest_name(run: Run, conn: psycopg.Connection) -> None:
    enqueue(conn, queue="mail")
    refused = run("why", "mial")
    assert (refused.code, refused.out) == (1, "")
    assert "There is no queue mial: did you mean mail?" in refused.err
    assert run("why", "default").out.startswith("default: on_time\n")


def test_workers_that_died_and_leases_that_lapsed_are_marked(run: Run, conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    for name in ("well", "silent"):
        call(conn, "hello", name)
        call(conn, "beat", name)
    enqueue_many(conn, 3)
    reserve_one(conn, "silent")
    reserve_one(conn, "silent", lease="10 min")
    reserve_one(conn, "never-registered", lease="10 min")
    clock.advance("1 minute")
    call(conn, "beat", "well")
    for command in ("status", "workers list"):
        out = run(*command.split()).out
        states = dict(re.findall(r"^(well|silent|never-registered) .*?(alive|silent|gone) ", out, re.MULTILINE))
        assert states == {"well": "alive", "silent": "silent", "never-registered": "gone"}
        assert "Worker silent is silent: last heartbeat " in out
        assert "it holds 2 jobs, 1 with a lapsed lease, which maintenance gives back." in out
        assert "Worker never-registered is gone, or not registered; it holds 1 job, to run again when" in out
        assert "Worker well " not in out
    found = {each["worker"]: each for each in run("workers", "list", "--json").json()}
    assert (found["silent"]["executing"], found["silent"]["lapsed"], found["silent"]["is_alive"]) == (2, 1, False)


def test_queues_are_set_paused_resumed_and_listed(run: Run, conn: psycopg.Connection) -> None:
    enqueue(conn, queue="mail")
    assert run("queues", "set", "mail", "--weight", 3, "--retention-dead", "30 days").out == "Queue mail: set\n"
    assert run("queues", "set", "mail", "--weight", 3).out == "Queue mail: unchanged\n"
    assert run("queues", "pause", "mail").out == "Queue mail: paused\n"
    assert run("queues", "pause", "mail").out == "Queue mail: unchanged\n"
    [listed] = run("queues", "list", "--json").json()
    assert (listed["queue"], listed["weight"], listed["waiting"]) == ("mail", 3, 1)
    assert re.search(r"^mail +3 +1 +0 +0 +0 +0 +\d+ s ago$", run("queues", "list").out, re.MULTILINE)
    assert run("queues", "resume", "mail").out == "Queue mail: resumed\n"
    assert run("queues", "pause", "mail", "--reason", "the provider is down").out == "Queue mail: paused\n"
    assert value(conn, "select reason from pgqueue.pauses where until > now()") == "the provider is down"
    assert run("queues", "resume", "mail").out == "Queue mail: resumed\n"
    assert run("queues", "set", "mail", "--reset", "retention-dead", "--json").json() == {
        "queue": "mail",
        "changed": True,
    }
    assert value(conn, "select retention_dead is null and weight = 3 from pgqueue.queues") is True
    refused = run("queues", "set", "mail", "--weight", 0)
    assert refused.code == 2
    assert "weight" in refused.err
    assert "reset names an unknown option" in run("queues", "set", "mail", "--reset", "colour").err


@pytest.mark.parametrize(
    "command",
    [
        "queues set default --reset fair-by --fair-by limit_key",
        "tasks set t --timeout 1min --reset timeout --create",
        "schedules set nightly --timezone UTC --reset timezone",
    ],
)
def test_an_option_that_is_both_given_and_reset_is_refused(run: Run, conn: psycopg.Connection, command: str) -> None:
    call(conn, "schedule", "nightly", "0 3 * * *", "report")
    before = value(conn, _SETTINGS)
    refused = run(*command.split())
    assert (refused.code, "reset names an option that is given" in refused.err) == (2, True)
    assert value(conn, _SETTINGS) == before


@pytest.mark.parametrize(
    ("command", "kind", "known"),
    [
        ("queues pause mial", "queue", "mail"),
        ("queues set mial --weight 3", "queue", "mail"),
        ("queues set defalt --weight 3", "queue", "default"),
        ("tasks set send_mail --max-attempts 3", "task", "send_email"),
        ("limits set queue mial -n 3", "queue", "mail"),
        ("limits set task send_mail -n 3", "task", "send_email"),
        ("limits pause task send_mail", "task", "send_email"),
        ("limits throttle queue mial 1min", "queue", "mail"),
        ("schedules add nightly send_mail --cron @daily", "task", "send_email"),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_the_nearest_until_it_is_to_be_created(
    run: Run, conn: psycopg.Connection, command: str, kind: str, known: str
) -> None:
    call(conn, "declare_task", "send_email", queue="mail")
    before = value(conn, _SETTINGS)
    words = command.split()
    refused = run(*words)
    [name] = {"mial", "defalt", "send_mail"} & set(words)
    assert (refused.code, refused.out) == (1, "")
    assert f"There is no {kind} {name} yet: did you mean {known}?" in refused.err
    assert value(conn, _SETTINGS) == before
    assert "--create" in refused.err
    assert run(*words, "--create").code == 0
    assert value(conn, _SETTINGS) != before


_SETTINGS = """
select array(select to_jsonb(q) from pgqueue.queues q) || array(select to_jsonb(t) from pgqueue.tasks t)
    || array(select to_jsonb(l) from pgqueue.limits l) || array(select to_jsonb(s) from pgqueue.schedules s)
    || array(select to_jsonb(p) from pgqueue.pauses p)
    || array(select to_jsonb(p) from pgqueue.pauses p)
"""


def test_a_queue_that_is_to_be_resumed_is_not_to_be_created(run: Run, conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "send_email", queue="mail")
    refused = run("queues", "resume", "mial")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == "There is no queue mial: did you mean mail?\n"
    assert run("queues", "resume", "mail").out == "Queue mail: unchanged\n"


def test_a_limit_of_keys_that_have_no_jobs_yet_is_set(run: Run) -> None:
    assert run("limits", "set", "key", "customer:", "-n", 1).code == 0
    assert run("limits", "set", "limit_key", "acme*", "-n", 1).code == 0


def test_an_enqueue_under_a_name_like_another_goes_through_with_a_note(run: Run, conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "send_email", queue="mail")
    first = run("enqueue", "other")
    assert (first.code, first.err) == (0, "")
    done = run("enqueue", "send_emial", "-q", "mial")
    assert (done.code, done.out.strip().isdigit()) == (0, True)
    assert "Nothing had the task send_emial until now: did you mean send_email?" in done.err
    assert "Nothing had the queue mial until now: did you mean mail?" in done.err
    assert run("enqueue", "send_email", "-q", "mail").err == ""


def test_a_schedule_is_added_once(run: Run, conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "send_report", queue="mail")
    add = ("schedules", "add", "weekly", "send_report", '{"days": 7}')
    done = run(*add, "--cron", "0 6 * * mon", "--timezone", "Europe/Berlin", "-q", "slow", "--priority", 3)
    assert done.code == 0, done.err
    assert re.fullmatch(r"Schedule weekly: added, next \d{4}-\d\d-\d\d \d\d:\d\d:\d\d.*\n", done.out)
    declared = "task, args, declared_expression, declared_timezone, queue, priority, catch_up"
    row = conn.execute(f"select {declared} from pgqueue.schedules".encode()).fetchone()
    assert row == ("send_report", {"days": 7}, "0 6 * * mon", "Europe/Berlin", "slow", 3, "last")
    again = run(*add, "--every", "1 h")
    assert (again.code, again.out) == (1, "")
    assert "There is a schedule weekly already" in again.err
    # As it is written: Python rounds numbers of more than 17 digits, and JSON itself has no longest integer.
    run("schedules", "add", "long", "send_report", '{"wei": 100000000000000000001}', "--every", "1h")
    assert value(conn, "select args ->> 'wei' from pgqueue.schedules where name = 'long'") == "100000000000000000001"
    assert run("schedules", "add", "pulse", "send_report", "--every", "90 s", "--json").json()["name"] == "pulse"
    for wrong in ([], ["--cron", "61 * * * *"], ["--cron", "@daily", "--every", "1 h"]):
        assert run("schedules", "add", "wrong", "send_report", *wrong).code == 2
    assert "ARGS is not a JSON object" in run("schedules", "add", "wrong", "send_report", "[]", "--every", "1 h").err


def test_tasks_are_set_before_any_worker_knows_them_and_listed(run: Run, conn: psycopg.Connection) -> None:
    set_ = ("tasks", "set", "send_email")
    first = run(*set_, "--max-attempts", 3, "--retry-delay", "5 min", "-q", "mail", "--create")
    assert first.out == "Task send_email: set\n"
    call(conn, "declare_task", "send_email", max_attempts=9, timeout="1 min")
    [listed] = run("tasks", "list", "--json").json()
    assert (listed["max_attempts"], listed["timeout"], listed["set"]) == (
        3,
        "00:01:00",
        ["max_attempts", "queue", "retry_delay"],
    )
    assert "max_attempts, queue, retry_delay" in run("tasks", "list").out
    assert run(*set_, "--reset", "max_attempts", "--no-store-result").out == "Task send_email: set\n"
    [listed] = run("tasks", "list", "--json").json()
    assert (listed["max_attempts"], listed["store_result"]) == (9, False)
    refused = run(*set_, "--max-attempts", 0)
    assert (refused.code, refused.out) == (2, "")
    assert "an option of task 'send_email' is out of range: max_attempts must be from 1 to 100000; Give" in refused.err


def test_a_list_of_delays_is_set(run: Run, conn: psycopg.Connection) -> None:
    done = run("tasks", "set", "t", "--retry-policy", "list", "--retry-delays", "10 s, 1 min,1 hour", "--create")
    assert done.code == 0, done.err
    assert (
        value(conn, "select retry_policy || retry_delays::text from pgqueue.tasks")
        == "list{00:00:10,00:01:00,01:00:00}"
    )
    refused = run("tasks", "set", "t", "--retry-delays", "10 s, x")
    assert (refused.code, 'retry_delays: invalid input syntax for type interval: "x"' in refused.err) == (2, True)


def test_a_part_of_a_limit_is_dropped(run: Run, conn: psycopg.Connection) -> None:
    run("limits", "set", "task", "t", "-n", 3, "--rate", 5, "--per", "1 min", "--create")
    assert run("limits", "drop", "task", "t", "--part", "rate").out == "Limit task t: rate dropped\n"
    assert run("limits", "list", "--json").json()[0]["max_executing"] == 3
    gone = run("limits", "drop", "task", "t", "--part", "rate")
    assert (gone.code, gone.err) == (1, "There is no limit task t with the part rate\n")
    assert run("limits", "drop", "task", "t", "--part", "colour").code == 2


def test_jobs_are_found_by_the_filter_of_the_pages(run: Run, jobs: dict[str, int]) -> None:
    assert ids(run, "--where", "state:dead") == [jobs["dead"]]
    assert ids(run, "--where", 'task:re* class:ValueError error:"such address"') == [jobs["failed"], jobs["dead"]]
    assert ids(run, "--where", "key:k", "--limit", 1) == [jobs["mail"]]
    assert ids(run, "--where", "key:nothing") == []
    for options, said in (
        (["--where", "colour:red"], "queue:"),
        (["--where", "state:dead", "--queue", "mail"], "--where excludes other filters"),
    ):
        refused = run("jobs", "list", *options)
        assert (refused.code, said in refused.err) == (2, True), refused.err


def test_a_bulk_command_takes_the_filter_of_the_pages(
    run: Run, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue_many(conn, 7, "send", queue="mail", tags=["vip"])
    enqueue_many(conn, 3, "send", queue="mail")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    asked = run("jobs", "cancel", "--where", "queue:mail tag:vip")
    assert asked.err.startswith("Cancel 7 jobs by: queue:mail tag:vip? [y/N]:")
    assert value(conn, "select count(*) from pgqueue.jobs") == 10
    done = run("jobs", "cancel", "--where", "queue:mail tag:vip", "--yes", "--chunk", 3)
    assert (done.code, done.out) == (0, "7 jobs cancelled or asked to stop\n")
    assert value(conn, "select count(*) from pgqueue.jobs") == 3
    assert run("jobs", "retry", "--where", "tag:vip state:cancelled", "--yes").out == "7 jobs retried\n"
    for options, said in (
        (["--where", " "], "every job"),
        (["17", "--where", "tag:vip"], "--where excludes other filters"),
        (["--where", "tag:vip", "--everything"], "--where excludes other filters"),
    ):
        refused = run("jobs", "delete", *options)
        assert (refused.code, said in refused.err) == (2, True), refused.err
    assert run("jobs", "kill", "--where", "queue:nowhere", "--yes").out == "0 jobs dead\n"


def test_jobs_are_retried_after_those_that_they_depend_on(run: Run, conn: psycopg.Connection) -> None:
    first = enqueue(conn, queue="chain")
    second = enqueue(conn, queue="chain", depends_on=[first])
    third = enqueue(conn, queue="chain", depends_on=[second])
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    done = run("jobs", "retry", "--where", "queue:chain state:dead,cancelled", "--yes", "--chunk", 1)
    # The first brought the others back.
    assert (done.code, done.out) == (0, "1 job retried\n")
    assert [state(conn, each) for each in (first, second, third)] == ["waiting", "blocked", "blocked"]


@pytest.mark.parametrize(
    ("action", "options", "question"),
    [
        ("cancel", ["--queue", "default"], "Cancel 12 jobs by: queue default? [y/N]:"),
        ("cancel", ["--task", "t", "--state", "waiting"], "Cancel 12 jobs by: task t, state waiting? [y/N]:"),
        ("run", ["--everything"], "Run 1 job, all there are? [y/N]:"),
        ("kill", ["--queue", "default"], "Kill 12 jobs by: queue default? [y/N]:"),
        ("delete", ["--state", "dead"], "Delete 1 job by: state dead? [y/N]:"),
        ("retry", ["--task", "t"], "Retry 1 job by: task t? [y/N]:"),
        ("purge", ["default"], "Purge 12 jobs by: queue default? [y/N]:"),
    ],
)
def test_a_bulk_command_says_how_many_jobs_match_before_it_asks(
    action: str, options: list[str], question: str, run: Run, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = enqueue(conn)
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    job_ids = [*enqueue_many(conn, 11), enqueue(conn, delay="1 hour")]
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    done = run("queues" if action == "purge" else "jobs", action, *options)
    assert done.code == 130
    assert done.err.startswith(question)
    # Counting has changed nothing.
    assert [state(conn, job_id) for job_id in [dead, *job_ids]] == ["dead", *["waiting"] * 12]
    assert value(conn, "select count(*) from pgqueue.jobs where run_at > now() + interval '30 min'") == 1


def test_a_bulk_command_takes_how_long_ago(run: Run, conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    old = enqueue(conn)
    clock.advance("3 hours")
    new = enqueue(conn)
    assert run("jobs", "cancel", "--created-after", "2 hours ago", "--yes").out.startswith("1 job ")
    assert (state(conn, old), state(conn, new)) == ("waiting", "cancelled")
    assert run("jobs", "cancel", "--created-before", "2 hours", "--yes").out.startswith("1 job ")
    assert state(conn, old) == "cancelled"


def test_a_bulk_command_that_matches_nothing_does_not_ask(run: Run) -> None:
    done = run("jobs", "cancel", "--queue", "nowhere")
    assert (done.code, done.out, done.err) == (0, "No job to cancel.\n", "")


def test_help_explains_a_function(run: Run) -> None:
    listed = run("help").out
    assert re.search(r"^enqueue_many +Enqueue one job for each element of args", listed, re.MULTILINE)
    assert re.search(
        r"^    delay interval DEFAULT .*\n        The same, counted from now\.$",
        run("help", "enqueue").out,
        re.MULTILINE,
    )
    shown = run("help", "pgqueue.depth()").out
    assert shown.startswith("pgqueue.depth\n    queue text")
    assert "Example: select pgqueue.depth('mail');" in shown
    assert "Who may: producer, worker, reader, operator, the owner" in shown
    # A default with a comma, which is no job's value.
    assert "\n    key text DEFAULT any\n    state text DEFAULT any\n" in run("help", "cancel_many").out
    gone = run("help", "jobs")
    assert (gone.code, gone.out) == (1, "")
    assert "commands have --help" in gone.err
    assert run("help", "depth", "--json").json()[0]["returns"] == "integer"


@pytest.mark.parametrize(
    ("path", "command"), [*commands()], ids=lambda each: "-".join(each) if isinstance(each, tuple) else ""
)
def test_the_help_of_a_command_has_an_example_that_it_takes(
    path: tuple[str, ...], command: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run(*path, "--help").out
    example = EXAMPLES[" ".join(path)]
    assert f"Example: {example}" in out
    assert "env var" not in out
    assert max(map(len, out.splitlines())) <= 100
    words = shlex.split(re.sub(r"^.*\$\(|\)$|.* \|\| ", "", example))
    assert tuple(words[1 : 1 + len(path)]) == path
    command.make_context(" ".join(path), words[1 + len(path) :]).close()


def test_no_example_is_left_over() -> None:
    assert {*EXAMPLES} == {" ".join(path) for path, _ in commands()}


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("jobs list --state d", ["dead"]),
        ("jobs cancel --state w", ["waiting"]),
        ("worker --strategy l", ["lag"]),
        ("jobs list --queue ma", ["mail"]),
        ("worker -q ma", ["mail"]),
        ("queues pause ma", ["mail"]),
        ("enqueue send_", ["send_email"]),
        ("tasks set send_", ["send_email"]),
        ("help unsch", ["unschedule"]),
        ("limits set limit", ["limit_key"]),
        ("grant pro", ["producer"]),
    ],
)
def test_a_shell_completes_values(
    words: str, completed: list[str], database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(conn, queue="mail")
    call(conn, "declare_task", "send_email")
    assert complete(words, PGQUEUE_DSN=database.dsn) == completed


def test_a_shell_completes_nothing_where_no_database_answers() -> None:
    assert complete("queues pause ma", PGQUEUE_DSN="postgresql://127.0.0.1:1/x") == []


def complete(words: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [Path(sys.executable).with_name("pgqueue")],
        env={
            **environment_without_dsn(),
            **environment,
            "_PGQUEUE_COMPLETE": "complete_bash",
            "COMP_WORDS": f"pgqueue {words}",
            "COMP_CWORD": str(len(words.split())),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_watch_shows_anew_what_has_changed_until_ctrl_c(database: Database, conn: psycopg.Connection) -> None:
    ours, theirs = pty.openpty()
    watching = subprocess.Popen(
        [sys.executable, "-m", "pgqueue", "jobs", "list", "--watch"],
        env={**environment_without_dsn(), "PGQUEUE_DSN": database.dsn, "COLUMNS": "80"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    shown = b""

    def shows(text: bytes) -> bool:
        nonlocal shown
        with suppress(BlockingIOError):
            shown += os.read(ours, 100_000)
        return text in shown

    try:
        wait_until(lambda: shows(b"\x1b[H\x1b[J"), timeout=30)
        enqueue(conn, "seen_later")
        wait_until(lambda: shows(b"seen_later"), timeout=30)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=280) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)
    assert b"Traceback" not in shown


def test_jobs_that_were_never_started_are_changed_by_id_and_by_filter(run: Run, conn: psycopg.Connection) -> None:
    job_id, *_ = enqueue_many(conn, 3, "import")
    assert (
        run("jobs", "update", str(job_id), "--args", '{"n": 100000000000000000001}').out == f"Job {job_id}: changed\n"
    )
    assert "100000000000000000001" in run("jobs", "show", str(job_id)).out
    assert run("jobs", "update", "--where", "task:import", "--queue", "slow", "--yes").out == "3 jobs changed\n"
    assert call(conn, "depth", "slow") == 3
    reserve_one(conn)
    told = run("jobs", "update", str(job_id), str(job_id + 1), "--priority", "3", "--json").out
    assert json.loads(told)["changed"] == 1
    refused = run("jobs", "update", str(job_id), "--priority", "3")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "executes it; Jobs that were never started can be changed" in refused.err
    assert "CONTEXT" not in refused.err
    assert "change what?" in run("jobs", "update", str(job_id)).err
    gone = run("jobs", "update", "9991", "9992", "--priority", "3")
    assert gone.code == 1
    assert gone.out.startswith("0 jobs changed")
    assert gone.out.endswith("; there is no job 9991, 9992, or its history has expired\n")


def test_the_log_lines_of_a_job_are_printed_and_followed_until_it_has_ended(run: Run, conn: psycopg.Connection) -> None:
    dead = enqueue(conn)
    call(conn, "fail", dead, reserve_one(conn).reservation, retry=False)
    line = {"job_id": dead, "attempt": 1, "at": "2030-01-01 12:00+00", "level": "WARNING", "line": "no paper\x1b[2J"}
    call(conn, "write_log", Jsonb([line, {**line, "line": "given up"}]))
    said = run("jobs", "logs", str(dead)).out.splitlines()
    assert [each.partition(" attempt ")[2] for each in said] == [
        "1 WARNING  no paper\\x1b[2J", "1 WARNING  given up"
    ]  # fmt: skip
    assert run("jobs", "logs", str(dead), "--follow").out.splitlines() == said
    assert [each["line"] for each in json.loads(run("jobs", "logs", str(dead), "--json").out)][1] == "given up"
    followed = [json.loads(each) for each in run("jobs", "logs", str(dead), "-f", "--json").out.splitlines()]
    assert [each["line"] for each in followed] == ["no paper\x1b[2J", "given up"]
    assert "There is no job 999" in run("jobs", "logs", "999").err
    assert "does not execute" in run("jobs", "stack", str(dead)).err


def test_all_log_lines_of_a_job_are_printed_as_json(run: Run, conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    line = {"job_id": job_id, "attempt": 1, "at": "2030-01-01 12:00+00", "level": "INFO"}
    for start in (0, 600, 1200):
        call(conn, "write_log", Jsonb([{**line, "line": str(n)} for n in range(start, start + 600)]))
    said = run("jobs", "logs", str(job_id), "--json").json()
    assert [each["line"] for each in said] == [str(n) for n in range(1800)]


def test_a_job_is_followed_until_its_last_lines_are_stored(
    run: Run, conn: psycopg.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker stores them up to two seconds after its end."""
    job_id = enqueue(conn)
    held = reserve_one(conn)
    line = {"job_id": job_id, "attempt": 1, "at": "2030-01-01 12:00+00", "level": "INFO"}
    rounds = [
        lambda: call(conn, "write_log", Jsonb([{**line, "line": "first"}])),
        lambda: call(conn, "complete", job_id, held.reservation),
        lambda: call(conn, "write_log", Jsonb([{**line, "line": "last"}])),
        lambda: call(conn, "write_log", Jsonb([{**line, "line": "3 more lines were not kept"}])),
    ]

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        if rounds:
            rounds.pop(0)()

    monkeypatch.setattr("pgqueue.cli.jobs.time", SimpleNamespace(sleep=wait))
    said = run("jobs", "logs", str(job_id), "-f").out.splitlines()
    assert [each.rpartition("INFO     ")[2] for each in said] == ["first", "last", "3 more lines were not kept"]
    assert rounds == []


def test_facets_say_whose_jobs_match_and_give_each_as_a_filter(run: Run, conn: psycopg.Connection) -> None:
    enqueue_many(conn, 3, "import", limit_key="tenant:a", tags=["vip"], key="k 1")
    enqueue(conn, "send", limit_key="tenant:b")
    said = run("jobs", "facets", "--where", "state:waiting").out
    assert "Jobs of 4 that match:" in said
    assert "task        3  75 %  import  task:import" in said
    assert "tenant      1  25 %  tenant:b  tenant:tenant:b" in said
    assert json.loads(run("jobs", "list", "--where", "tenant:tenant:b", "--json").out)[0]["task"] == "send"
    assert 'key         3  75 %  k 1  key:"k 1"' in said
    assert "tag         3  75 %  vip  tag:vip" in said
    rows = json.loads(run("jobs", "facets", "--where", "task:send", "--json").out)
    assert {"facet": "task", "value": "send", "jobs": 1} in rows
    assert run("jobs", "facets", "--where", "task:none").out == "Jobs of 0 that match:\n"


def test_a_facet_stays_on_its_line(run: Run, conn: psycopg.Connection) -> None:
    enqueue(conn, "import", key="one\ntwo", tags=["a\tb"])
    *_, key, tag = run("jobs", "facets").out.splitlines()
    assert key == r'key         1 100 %  one two  key:"one\ntwo"'
    assert tag == r'tag         1 100 %  a b  tag:"a\tb"'
    found = run("jobs", "list", "--where", r'key:"one\ntwo" tag:"a\tb"', "--json").json()
    assert [each["key"] for each in found] == ["one\ntwo"]
