"""`pgqueue mcp`, driven by the client of the protocol's own SDK over stdin and stdout, as an agent's program does."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, enqueue, reserve_one, state
from tests.cli.conftest import Run
from tests.databases import Database
from tests.docs.pages import blocks
from tests.workers import environment_without_dsn

if find_spec("mcp_types") is None:
    pytest.skip("mcp is not installed", allow_module_level=True)

from mcp import Client, StdioServerParameters

# The settings that the page gives to an agent's program.
[SETTINGS] = [json.loads(each.text) for each in blocks("docs/how-to/coding-agents.md") if each.language == "json"]
SERVER = SETTINGS["mcpServers"]["pgqueue"]

READING = {"status", "doctor", "search_jobs", "show_job", "explain_job", "dead_jobs"}
ACTING = {"retry_jobs", "run_jobs_now", "cancel_jobs", "pause_queue", "resume_queue"}


@asynccontextmanager
async def agent(database: Database, *options: str) -> AsyncIterator[Client]:
    environment = {**environment_without_dsn(), **dict.fromkeys(SERVER["env"], database.dsn)}
    arguments = ["-m", SERVER["command"], *SERVER["args"], *options]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=environment)
    async with Client(server) as client:
        yield client


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    return answer.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error, answer.structured_content
    return " ".join(getattr(each, "text", "") for each in answer.content)


def dead(conn: psycopg.Connection, task: str = "send_email", **options: Any) -> int:
    job_id = enqueue(conn, task, **options)
    held = reserve_one(conn)
    assert held.id == job_id
    error = {"class": "KeyError", "message": "'order'", "traceback": 'File "mail.py", line 3'}
    call(conn, "fail", held.id, held.reservation, Jsonb(error), retry=False)
    return job_id


async def test_an_agent_is_offered_only_tools_that_read(database: Database) -> None:
    async with agent(database) as client:
        tools = {each.name: each for each in (await client.list_tools()).tools}
        assert tools.keys() == READING
        assert all(each.annotations and each.annotations.read_only_hint for each in tools.values())
        assert all(each.description for each in tools.values())
        assert "Unknown tool" in await refused(client, "retry_jobs", job_ids=[1])


async def test_an_agent_finds_out_why_jobs_do_not_run(database: Database, conn: psycopg.Connection) -> None:
    failed = dead(conn, args={"order": 17}, queue="mail")
    later = enqueue(conn, "report", delay="1 h")
    call(conn, "pause_queue", "mail")
    waiting = [enqueue(conn, "send_email", queue="mail") for _ in range(3)]
    async with agent(database) as client:
        assert [each["queue"] for each in (await ask(client, "status"))["queues"]] == ["default", "mail"]
        assert (await ask(client, "explain_job", job_id=waiting[0]))["reason"] == "paused"
        assert (await ask(client, "explain_job", job_id=later))["reason"] == "not_due"
        [group] = (await ask(client, "dead_jobs"))["groups"]
        assert (group["task"], group["class"], group["last_id"]) == ("send_email", "KeyError", failed)
        assert (await ask(client, "dead_jobs", queue="default"))["groups"] == []
        job = await ask(client, "show_job", job_id=failed)
        assert (job["state"], job["args"], job["errors"][0]["traceback"]) == (
            "dead", {"order": 17}, 'File "mail.py", line 3',
        )  # fmt: skip
        topics = {each["topic"] for each in (await ask(client, "doctor"))["problems"]}
        assert topics == {each["topic"] for each in _findings(conn)}
        assert f"there is no job {later + 1000}" in await refused(client, "show_job", job_id=later + 1000)
        assert "there is no job" in await refused(client, "explain_job", job_id=later + 1000)


async def test_an_agent_sees_the_newest_errors_of_a_job_however_long_they_are(
    database: Database, conn: psycopg.Connection
) -> None:
    job_id = enqueue(conn, "send_email", max_attempts=40, retry_policy="fixed", retry_delay="0")
    for attempt in range(1, 11):
        held = reserve_one(conn)
        error = {"class": "KeyError", "message": "m" * 9000, "traceback": f"{'x' * 9000} line {attempt}"}
        call(conn, "fail", held.id, held.reservation, Jsonb(error))
    async with agent(database) as client:
        *errors, rest = (await ask(client, "show_job", job_id=job_id))["errors"]
    assert [each["traceback"].rpartition(" line ")[2] for each in errors] == ["10", "9", "8", "7", "6", "5"]
    assert {len(each["traceback"]) for each in errors} == {4004}
    assert rest == "4 older errors: too long to show"


def _findings(conn: psycopg.Connection) -> list[dict[str, str]]:
    return [row[0] for row in conn.execute("select to_jsonb(d) from pgqueue.doctor() d").fetchall()]


async def test_an_agent_searches_in_the_language_of_the_pages_page_by_page(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = [enqueue(conn, "resize", queue="images", args={"n": n}) for n in range(5)]
    enqueue(conn, "other")
    async with agent(database) as client:
        first = await ask(client, "search_jobs", where="queue:images state:waiting", limit=3)
        rest = await ask(client, "search_jobs", where="queue:images state:waiting", limit=3, after=first["next"])
        assert [each["id"] for each in first["jobs"] + rest["jobs"]] == jobs[::-1]
        assert rest["next"] is None
        oldest = await ask(client, "search_jobs", where="args.n:0", order="oldest")
        assert [each["id"] for each in oldest["jobs"]] == jobs[:1]
        assert "there is no word 'nothing'" in await refused(client, "search_jobs", where="nothing:1")
        assert "limit" in await refused(client, "search_jobs", limit=1000)
        # A filter is no SQL, and no value of it is.
        drop = "'; drop table pgqueue.jobs; --"
        assert (await ask(client, "search_jobs", where=f"task:{json.dumps(drop)}"))["jobs"] == []


async def test_values_that_the_pages_hide_are_hidden_from_an_agent(
    database: Database, conn: psycopg.Connection
) -> None:
    job_id = enqueue(conn, "login", args={"user": {"name": "ada", "password": "rosebud"}})
    async with agent(database) as client:
        job = await ask(client, "show_job", job_id=job_id)
        assert job["args"] == {"user": {"name": "ada", "password": "•••"}}
        assert "hidden" in await refused(client, "search_jobs", where="args.user.password:rosebud")
    async with agent(database, "--redact", "name") as client:
        # Beside the password.
        assert (await ask(client, "show_job", job_id=job_id))["args"]["user"] == {"name": "•••", "password": "•••"}
    async with agent(database, "--hide-args") as client:
        assert "args" not in await ask(client, "show_job", job_id=job_id)
        assert "hidden" in await refused(client, "search_jobs", where="args.user.name:ada")


async def test_documents_that_python_cannot_read_do_not_keep_a_job_from_an_agent(
    database: Database, conn: psycopg.Connection
) -> None:
    deep = conn.execute("""select pgqueue.enqueue('t', (repeat('{"a":', 3000) || '1' || repeat('}', 3000))::jsonb)""")
    huge = conn.execute("""select pgqueue.enqueue('t', '{"n": 1e400, "m": 1e5000}')""")
    [(deep_id,), (huge_id,)] = [*deep.fetchall(), *huge.fetchall()]
    async with agent(database) as client:
        assert "cannot be read" in (await ask(client, "show_job", job_id=deep_id))["args"]
        assert (await ask(client, "show_job", job_id=huge_id))["state"] == "waiting"
        assert len((await ask(client, "search_jobs"))["jobs"]) == 2


async def test_what_reads_cannot_write(database: Database, conn: psycopg.Connection) -> None:
    conn.execute("create sequence public.written")
    conn.execute("alter function pgqueue.doctor() rename to real_doctor")
    conn.execute(
        "create function pgqueue.doctor() returns setof pgqueue.settings language sql"
        " as $$ select s.* from pgqueue.settings s where nextval('public.written') > 0 $$"
    )
    async with agent(database, "--allow-actions") as client:
        assert "read-only transaction" in await refused(client, "doctor")


async def test_an_agent_that_may_act_is_in_the_audit_as_mcp(database: Database, conn: psycopg.Connection) -> None:
    failed = dead(conn)
    waiting = enqueue(conn, "t", queue="mail")
    later = enqueue(conn, "t", delay="1 h")
    call(conn, "configure_queue", "idle", weight=2)
    async with agent(database, "--allow-actions") as client:
        assert {each.name for each in (await client.list_tools()).tools} == READING | ACTING
        for tool, arguments, action, answer in (
            ("retry_jobs", {"job_ids": [failed, failed, 10**12]}, "retry_many", {"changed": 1, "unchanged": 1}),
            ("run_jobs_now", {"job_ids": [later]}, "run_now_many", {"changed": 1, "unchanged": 0}),
            ("cancel_jobs", {"job_ids": [waiting]}, "cancel_many", {"changed": 1, "unchanged": 0}),
            ("pause_queue", {"queue": "idle"}, "pause_queue", {"changed": True}),
            ("resume_queue", {"queue": "idle"}, "resume_queue", {"changed": True}),
        ):
            assert await ask(client, tool, **arguments) == answer
            row = conn.execute("select action, actor, via from pgqueue.audit order by n desc limit 1").fetchone()
            assert row is not None
            assert (row[0], row[1].split(" ")[0], row[2]) == (action, "mcp", "mcp")
        # A slip of the pen makes no queue.
        assert "there is no queue 'idel'" in await refused(client, "pause_queue", queue="idel")
        assert "no queue" in await refused(client, "resume_queue", queue="idel")
        assert "job_ids" in await refused(client, "cancel_jobs", job_ids=[])
    assert [state(conn, each) for each in (failed, waiting, later)] == ["waiting", "cancelled", "waiting"]
    assert conn.execute("select count(*) from pgqueue.queues where name = 'idel'").fetchone() == (0,)


async def test_a_database_that_is_away_is_an_answer_and_the_server_stays(
    database: Database, conn: psycopg.Connection
) -> None:
    job_id = enqueue(conn)
    name = conn.info.dbname
    with psycopg.connect(database.dsn, dbname="postgres", autocommit=True) as other:
        async with agent(database) as client:
            other.execute(f"alter database {name} allow_connections false".encode())
            try:
                assert "not currently accepting connections" in await refused(client, "status")
            finally:
                other.execute(f"alter database {name} allow_connections true".encode())
            assert (await ask(client, "show_job", job_id=job_id))["id"] == job_id


def test_without_the_extra_the_command_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgqueue.cli.mcp.find_spec", lambda name: None)
    done = run("mcp")
    assert (done.code, done.out) == (2, "")
    assert "pip install 'pgqueue-sql[mcp]'" in done.err
