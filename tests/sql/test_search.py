"""search() and dead_groups(): jobs by a filter, at a cost that does not depend on the backlog."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, reserve, table, value
from tests.sql.plans import blocks


def search(conn: psycopg.Connection, before: int | None = None, max_jobs: int = 50, **filter: Any) -> list[int]:
    return found(conn, before, max_jobs, **filter).job_ids


def found(conn: psycopg.Connection, before: int | None = None, max_jobs: int = 50, **filter: Any) -> Any:
    [row] = table(conn, "search", Jsonb(filter), before=before, max_jobs=max_jobs)
    return row


def finish(
    conn: psycopg.Connection, outcome: str, jobs: int, error: dict[str, Any] | None = None, **options: Any
) -> list[int]:
    ids = []
    for row in reserve(conn, jobs, **options):
        ids.append(row.id)
        if outcome == "succeeded":
            call(conn, "complete", row.id, row.reservation)
        elif outcome == "cancelled":
            call(conn, "fail", row.id, row.reservation, Jsonb(error or {}), retry=False, cancel=True)
        else:
            call(
                conn,
                "fail",
                row.id,
                row.reservation,
                Jsonb(error or {}),
                retry=outcome == "failed",
                retry_in="1 h" if outcome == "failed" else None,
            )
    return ids


@pytest.fixture
def jobs(conn: psycopg.Connection) -> dict[str, list[int]]:
    made = {
        "mail": enqueue_many(conn, 6, "send_email", queue="mail"),
        "sms": enqueue_many(conn, 4, "send_sms", queue="sms", tags=["vip", "weekly"], priority=7),
        "keyed": enqueue_many(conn, 3, "book", queue="shop", key="order:17"),
        "later": [enqueue(conn, "report", {"user": {"id": 17, "name": "a%b"}}, queue="reports", delay="1 h")],
    }
    made["dead"] = finish(conn, "dead", 2, {"class": "TimeoutError", "message": "no answer\nat all"}, queues=["mail"])
    made["failed"] = finish(conn, "failed", 1, {"class": "KeyError", "message": "x"}, queues=["mail"])
    made["succeeded"] = finish(conn, "succeeded", 1, queues=["sms"])
    made["executing"] = [row.id for row in reserve(conn, 1, "w1", queues=["shop"])]
    return made


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"queues": ["mail"]}, "mail"),
        ({"queues": ["ma*"]}, "mail"),
        ({"tasks": ["send_email"]}, "mail"),
        ({"queues": ["shop"], "keys": ["order:17"]}, "keyed"),
        ({"keys": ["order:*"]}, "keyed"),
        ({"states": ["dead"]}, "dead"),
        ({"queues": ["mail"], "states": ["dead"]}, "dead"),
        ({"states": ["failed"]}, "failed"),
        ({"states": ["executing"]}, "executing"),
        ({"workers": ["w1"]}, "executing"),
        ({"states": ["succeeded"]}, "succeeded"),
        ({"tags": ["vip"]}, "sms"),
        ({"priority_from": 6}, "sms"),
        ({"args": [{"user": {"id": 17}}]}, "later"),
        ({"run_from": "now"}, "later"),
        ({"classes": ["TimeoutError"]}, "dead"),
        ({"lines": ["no answer"]}, "dead"),
        ({"errors": ["TIMEOUT"]}, "dead"),
        ({"age_from": "1 h"}, None),
        ({"queues": ["m_il"]}, None),
        ({"queues": ["%"]}, None),
        ({"tasks": ["send_email\\*"]}, None),
    ],
)
def test_a_filter_finds_the_jobs_that_fit(
    conn: psycopg.Connection, jobs: dict[str, list[int]], filter: dict[str, Any], expected: str | None
) -> None:
    wanted = sorted(jobs[expected], reverse=True) if expected else []
    if filter == {"run_from": "now"}:
        wanted = sorted({*wanted, *jobs["failed"]}, reverse=True)
    assert search(conn, **filter) == wanted


def test_ids_and_ranges_of_ids(conn: psycopg.Connection, jobs: dict[str, list[int]]) -> None:
    assert search(conn, ids=[jobs["mail"][0], jobs["sms"][1], 10**15]) == [jobs["sms"][1], jobs["mail"][0]]
    assert search(conn, id_from=2, id_to=4) == [4, 3, 2]


def test_pages_follow_each_other_without_a_gap_or_a_job_twice(conn: psycopg.Connection) -> None:
    rng = random.Random(1)
    for queue in ("a", "b", "c"):
        enqueue_many(conn, 40, queue=queue)
        finish(conn, "dead", rng.randint(3, 9), queues=[queue])
        finish(conn, "succeeded", rng.randint(3, 9), queues=[queue])
        finish(conn, "cancelled", rng.randint(3, 9), queues=[queue])
    every = [row[0] for row in conn.execute("select id from pgqueue.all_jobs order by id desc")]
    for filter, expected in [
        ({}, every),
        (
            {"queues": ["a"]},
            [row[0] for row in conn.execute("select id from pgqueue.all_jobs where queue = 'a' order by id desc")],
        ),
        (
            {"states": ["dead", "cancelled"]},
            [
                row[0]
                for row in conn.execute(
                    "select id from pgqueue.all_jobs where state in ('dead', 'cancelled') order by id desc"
                )
            ],
        ),
    ]:
        seen: list[int] = []
        before = None
        while True:
            page = found(conn, before, 7, **filter)
            seen += page.job_ids
            before = page.next_before
            if before is None:
                break
        assert seen == expected


def test_a_search_stops_at_its_bound_says_so_and_goes_on(conn: psycopg.Connection) -> None:
    [wanted] = enqueue_many(conn, 1, "rare")
    enqueue_many(conn, 300, "common")
    [row] = table(conn, "search", Jsonb({"tasks": ["rare"]}), max_rows=100)
    assert (row.job_ids, row.is_cut) == ([], True)
    seen, before = [], None
    for _ in range(10):
        [row] = table(conn, "search", Jsonb({"tasks": ["rare"]}), before=before, max_rows=100)
        seen += row.job_ids
        before = row.next_before
        if before is None:
            break
    assert seen == [wanted]


def every_page(conn: psycopg.Connection, max_rows: int = 50_000, **filter: Any) -> list[int]:
    seen: list[int] = []
    before = None
    while True:
        [row] = table(conn, "search", Jsonb(filter), before=before, max_rows=max_rows)
        # Fewer than were asked for, and more to come: it says so.
        assert row.is_cut == (row.next_before is not None and len(row.job_ids) < 50)
        seen += row.job_ids
        before = row.next_before
        if before is None:
            return seen


def test_jobs_of_every_one_of_many_queues_are_found_and_grouped(conn: psycopg.Connection) -> None:
    jobs = [enqueue(conn, "t", queue=f"tenant-{number}") for number in range(300)]
    call(conn, "kill_many", job_ids=jobs)
    assert every_page(conn, states=["dead"]) == jobs[::-1]
    assert every_page(conn, queues=["tenant-*"], states=["dead"]) == jobs[::-1]
    assert conn.execute("select jobs from pgqueue.dead_groups()").fetchall() == [(300,)]
    assert conn.execute("select jobs from pgqueue.dead_groups(max_jobs => 100)").fetchall() == [(100,)]
    assert call(conn, "retry_many", state="dead") == 300


def test_jobs_of_a_queue_are_found_beside_any_number_of_others(conn: psycopg.Connection) -> None:
    few = enqueue_many(conn, 4, queue="few")
    many = enqueue_many(conn, 3000, queue="many")
    conn.execute(
        "update pgqueue.jobs set state = 'blocked', blocked_on = 'task:t' where id = any (%s)", [[*many, *few[2:]]]
    )
    for max_rows in (100, 2500, 50_000):
        assert every_page(conn, max_rows, queues=["few"]) == few[::-1]
        assert every_page(conn, max_rows, queues=["few"], states=["blocked"]) == few[:1:-1]
    assert call(conn, "cancel_many", queue="few") == 4


def test_jobs_that_are_named_twice_are_found_once(conn: psycopg.Connection) -> None:
    [live, ended] = enqueue_many(conn, 2)
    call(conn, "cancel", ended)
    assert search(conn, ids=[live, ended, live, ended]) == [ended, live]


def test_names_are_values_and_never_text_of_a_statement(conn: psycopg.Connection) -> None:
    name = "x' or $1 %s %1$I \\'); select 1/0 --"
    job_id = enqueue(conn, name, queue=name, key=name)
    ended = enqueue(conn, name, queue=name, key=name)
    call(conn, "cancel", ended)
    assert search(conn, queues=[name]) == search(conn, keys=[name], queues=[name]) == [ended, job_id]
    for states in (["waiting"], ["cancelled"], ["waiting", "cancelled"], ["dead", "cancelled"]):
        expected = [found for found, state in ((ended, "cancelled"), (job_id, "waiting")) if state in states]
        assert search(conn, states=states, queues=[name], tasks=[name]) == expected
        assert search(conn, states=states, keys=[name]) == expected
    [row] = table(conn, "cancel_many", queue=name, task=name, key=name)
    assert row.changed == 1


def test_an_empty_list_of_names_fits_no_job(conn: psycopg.Connection) -> None:
    enqueue(conn, tags=["vip"])
    for field in ("queues", "tasks", "keys", "tags", "workers", "classes", "lines", "errors", "states", "ids"):
        assert search(conn, **{field: []}) == [], field


@pytest.mark.parametrize(
    "wrong",
    [
        {"errors": [""]},
        {"lines": ["no answer", ""]},
        {"queues": [""]},
        {"tags": [""]},
        {"errors": ["*"]},
        {"tasks": ["*"]},
        {"lines": ["*"]},
        {"fingerprints": ["*"]},
        {"queues": "{*}"},
        {"errors": '{""}'},
        {"queues": None},
        {"ids": None},
        {"states": ["dead"], "args": None},
        {"args": []},
        {"args": [{"a": 1}, {}]},
    ],
)
def test_a_filter_that_would_fit_every_job_is_refused(conn: psycopg.Connection, wrong: Any) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"fit every job|nothing to contain|is null"):
        table(conn, "search", Jsonb(wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        1,
        {"colour": 1},
        {"states": ["odd"]},
        {"ids": ["x"]},
        {"id_from": 10**30},
        {"created_from": "soon"},
        {"queues": 3},
    ],
)
def test_a_filter_of_a_wrong_kind_is_refused(conn: psycopg.Connection, wrong: Any) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        table(conn, "search", Jsonb(wrong))


def test_members_of_a_group_are_found_live_and_ended_page_by_page(conn: psycopg.Connection) -> None:
    group = call(conn, "open_group", "import")
    members = enqueue_many(conn, 30, "load", group_id=group)
    enqueue_many(conn, 30, "load")
    finish(conn, "dead", 4, {"class": "KeyError", "message": "x"})
    finish(conn, "succeeded", 3)
    finish(conn, "failed", 2)
    reserve(conn, 2)
    pages, before = [], None
    while True:
        row = found(conn, before, 4, groups=[group])
        pages += row.job_ids
        before = row.next_before
        if before is None:
            break
    assert pages == sorted(members, reverse=True)
    assert search(conn, groups=[group], states=["dead"]) == sorted(members[:4], reverse=True)
    assert search(conn, groups=[group], states=["executing"]) == sorted(members[9:11], reverse=True)
    assert search(conn, groups=[group], classes=["KeyError"]) == sorted(members[:4], reverse=True)
    assert search(conn, groups=[group], ids=members[:2]) == [members[1], members[0]]
    assert search(conn, groups=[group + 10**6]) == []
    assert search(conn, groups=[]) == []


def test_members_are_read_by_the_index_of_groups(conn: psycopg.Connection) -> None:
    group = call(conn, "open_group", "import")
    enqueue_many(conn, 20, "load", group_id=group)
    enqueue_many(conn, 20_000, "other")
    conn.execute("analyze pgqueue.jobs")
    search = f"""pgqueue.search('{{"groups": [{group}]}}')"""
    # The first call of a session also reads catalogs.
    blocks(conn, search)
    assert blocks(conn, search) < 200


def test_a_search_reads_few_rows_beside_a_large_backlog(conn: psycopg.Connection) -> None:
    search = """pgqueue.search('{"queues": ["small"], "states": ["waiting"]}')"""
    enqueue_many(conn, 3, "rare", queue="small")
    read = []
    for backlog in (5000, 15000):
        conn.execute(
            "select pgqueue.enqueue_many('common', array_fill('{}'::jsonb, array[%s::integer]), queue => 'large')",
            [backlog],
        )
        conn.execute("analyze pgqueue.jobs")
        read.append(blocks(conn, search))
    # As many beside four times as many; before 18 each call of a function in SQL is planned, which reads some as well.
    assert read[1] < read[0] + 20


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("no answer from https://hooks.lumen.example/a?b=1 within 10.5 s", "no answer from <url> within <n> s"),
        ("card 4242 of 'Ada Example' declined", "card <n> of <text> declined"),
        ("row 1,204: price: can't read `12,90`", "row <n>: price: can't read <text>"),
        ("order 0f8fad5b-d9cb-469f-a165-70867728950e is gone", "order <id> is gone"),
        ("commit 9fceb02d0ae5 and 0xdeadbeef", "commit <id> and <id>"),
        ("document sku-1207 has version 41", "document <id> has version <n>"),
        ("no answer from hooks.acme-7.example:8443 within 10 s", "no answer from <host> within <n> s"),
        ("no answer from FILE://HOST/inbox", "no answer from <url>"),
        ("commit 9FCEB02D0AE5 and 0XDEADBEEF", "commit <id> and <id>"),
        ("feedback is bad", "feedback is bad"),
        ("products.csv has no column price", "products.csv has no column price"),
    ],
)
def test_a_fingerprint_masks_what_differs_from_job_to_job(conn: psycopg.Connection, line: str, masked: str) -> None:
    enqueue(conn, "a")
    finish(conn, "dead", 1, {"class": "E", "message": line})
    [(found,)] = conn.execute("select fingerprint from pgqueue.dead_groups()")
    assert found == masked


def test_a_fingerprint_is_the_same_in_a_turkish_database(conn: psycopg.Connection) -> None:
    """Of the C library: regular expressions ask ICU for letters of no language."""
    with conn.transaction(force_rollback=True):
        try:
            conn.execute("create collation public.turkish (provider = libc, locale = 'tr_TR.UTF-8')")
        except psycopg.Error as error:
            # Locales of the C library are the machine's: without this one no database on it can have its rules.
            pytest.skip(f"the server has no Turkish locale: {error.diag.message_primary}")
        line = "select pgqueue._fingerprint('no answer from FILE://HOST/I' collate public.turkish)"
        assert value(conn, line) == "no answer from <url>"


def test_many_deaths_of_one_cause_are_one_group_and_a_filter_finds_them(conn: psycopg.Connection, clock: Clock) -> None:
    for n in range(12):
        enqueue(conn, "a", queue="q" if n % 2 else "p")
        finish(conn, "dead", 1, {"class": "E", "message": f"order {n} of host-{n} failed"})
        clock.advance("30 min")
    enqueue(conn, "a")
    finish(conn, "dead", 1, {"class": "E", "message": "order book failed"})
    rows = conn.execute("select fingerprint, jobs, line, queues, trend from pgqueue.dead_groups()").fetchall()
    masked = "order <n> of <id> failed"
    assert rows[0][:2] == ("order book failed", 1)
    assert rows[1][:4] == (masked, 12, "order 11 of host-11 failed", ["p", "q"])
    assert sum(rows[1][4]) == 12
    assert rows[1][4][-7:] == [1, 2, 2, 2, 2, 2, 1]
    assert len(rows[1][4]) == 24
    found = call(conn, "search", Jsonb({"fingerprints": [masked], "states": ["dead"]}))
    assert len(found) == 12
    assert call(conn, "search", Jsonb({"fingerprints": ["order *"]})) == [13, *found]


def test_the_dead_are_grouped_by_task_class_and_first_line(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 6, "a", queue="q")
    finish(conn, "dead", 3, {"class": "E", "message": "one\ntwo"}, queues=["q"])
    finish(conn, "dead", 2, {"class": "E", "message": "other"}, queues=["q"])
    finish(conn, "dead", 1, {}, queues=["q"])
    rows = conn.execute("select task, class, line, jobs from pgqueue.dead_groups()").fetchall()
    assert set(rows) == {("a", "E", "one", 3), ("a", "E", "other", 2), ("a", None, "", 1)}
    assert conn.execute("select from pgqueue.dead_groups('nothing')").fetchall() == []
    assert len(conn.execute("select from pgqueue.dead_groups('q')").fetchall()) == 3


def test_jobs_are_found_by_tenant_and_by_who_enqueued_them(conn: psycopg.Connection) -> None:
    first = enqueue(conn, "a", limit_key="tenant:lumen")
    enqueue(conn, "a", limit_key="tenant:acme")
    conn.execute("set application_name = 'backfill.py'")
    other = enqueue(conn, "a")
    assert call(conn, "search", Jsonb({"tenants": ["tenant:lumen"]})) == [first]
    assert len(call(conn, "search", Jsonb({"tenants": ["tenant:*"]}))) == 2
    by = value(conn, "select enqueued_by from pgqueue.all_jobs where id = %s", other)
    assert call(conn, "search", Jsonb({"enqueued_by": [by]})) == [other]
    assert call(conn, "search_due", Jsonb({"tenants": ["tenant:lumen"]})) == [first]
    found = call(conn, "update_many", Jsonb({"tenants": ["tenant:lumen"]}), priority=-10)
    assert found == 1
    assert value(conn, "select priority from pgqueue.all_jobs where id = %s", first) == -10


def test_the_jobs_of_a_bulk_retry_are_found_in_whatever_state_they_are(conn: psycopg.Connection) -> None:
    ids = enqueue_many(conn, 4)
    for row in reserve(conn, 4):
        call(conn, "fail", row.id, row.reservation, retry=False)
    assert call(conn, "search", Jsonb({"retries": [1]})) == []
    call(conn, "retry_many", job_ids=ids[:3])
    enqueue_many(conn, 2)
    number = value(conn, "select max(n) from pgqueue.retry_fates()")
    [first, *_] = reserve(conn, 1)
    call(conn, "complete", first.id, first.reservation)
    assert call(conn, "search", Jsonb({"retries": [number]})) == ids[2::-1]
    assert call(conn, "search", Jsonb({"retries": [number], "ids": ids[1:], "states": ["waiting"]})) == ids[2:0:-1]
    assert call(conn, "search", Jsonb({"retries": [number], "states": ["dead"]})) == []
