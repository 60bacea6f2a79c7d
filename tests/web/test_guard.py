"""What stands before the pages: other sites, other hosts, those who may not; and what producers put into names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.web import by_header, by_password
from tests.calls import call, enqueue, enqueue_many, maintain, reserve_one, value
from tests.databases import Database, uri
from tests.facts import wait_until
from tests.web.conftest import Serve

Ask = Callable[..., httpx.Response]

# What a producer may try, in every text that it controls.
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "javascript:alert(1)",
    "{{ 7919 * 7927 }}",
    "\u202egnp.exe\u2066",
    "\x1b[2J\x07",
    "..%2f..%2fetc%2fpasswd",
    "a&b=c#d?e",
    "x" * 128,
    "ä" * 60,
]


@pytest.fixture
def role(conn: psycopg.Connection, database: Database) -> Iterator[Callable[[str], str]]:
    """Makes a role of a kind; returns the DSN that connects as it."""
    made: list[str] = []

    def make(kind: str) -> str:
        name = f"web_{kind}_{database.name}"
        conn.execute(f"create role {name} login".encode())
        made.append(name)
        call(conn, "grant_access", kind, name)
        return uri(database.dsn, options=f"-c role={name}")

    yield make
    for name in made:
        conn.execute(f"drop owned by {name}; drop role {name}".encode())


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"sec-fetch-site": "same-origin"}, 303),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://localhost"}, 403),
        ({}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_another_site_can_change_nothing(
    conn: psycopg.Connection, ask: Ask, headers: dict[str, str], code: int
) -> None:
    assert ask("POST", "/queue", headers=headers, name="mail", do="pause").status_code == code
    assert value(conn, "select count(*) from pgqueue.pauses") == (code == 303)


def test_an_old_browser_is_known_by_its_origin(serve: Serve, ask: Ask) -> None:
    address = serve()
    assert ask("POST", "/queue", at=address, headers={"origin": address}, name="q", do="pause").status_code == 303
    behind = serve(origin="https://ops.example.com")
    for origin, code in [("https://ops.example.com", 303), ("https://ops.example.com.evil.example", 403)]:
        answer = ask("POST", "/queue", at=behind, headers={"origin": origin}, name="p", do="pause")
        assert answer.status_code == code


def test_a_foreign_name_that_resolves_to_this_host_is_refused(serve: Serve, ask: Ask) -> None:
    address = serve(allowed_hosts=["jobs.example.com", "Ops.example.com:8081", "fd00::7", "[fd00::8]:8081"])
    for host, code in [
        *(("evil.example", 421), ("evil.example:8081", 421), ("", 421), ("jobs.example.com.evil.example", 421)),
        *(("localhost:8081", 200), ("127.0.0.1", 200), ("[::1]:8081", 200), ("jobs.example.com", 200)),
        *(("ops.example.com:8081", 200), ("[fd00::7]:8081", 200), ("[fd00::8]:8081", 200), ("[fd00::9]", 421)),
    ]:
        assert ask("GET", "/queues", at=address, headers={"host": host}).status_code == code, host


@pytest.mark.parametrize("path", ["/", "/jobs", "/metrics", "/series", "/nothing"])
def test_no_visitor_is_admitted_without_a_name(serve: Serve, ask: Ask, path: str) -> None:
    address = serve(authorize=by_password("ops", "geheim"))
    assert ask("GET", path, at=address).status_code == 401
    with httpx.Client(base_url=address, timeout=30) as client:
        for name, password, code in [("ops", "geheim", 200), ("ops", "", 401), ("", "geheim", 401), ("ops", "x", 401)]:
            answer = client.get("/queues", auth=(name, password))
            assert answer.status_code == code
        assert client.get("/queues", headers={"authorization": "Basic !!!"}).status_code == 401


def test_a_proxy_says_who_it_is(conn: psycopg.Connection, serve: Serve, ask: Ask) -> None:
    address = serve(authorize=by_header("X-Forwarded-User"))
    assert ask("GET", "/", at=address).status_code == 401
    sent = {"x-forwarded-user": "bob", "sec-fetch-site": "same-origin"}
    assert ask("POST", "/queue", at=address, headers=sent, name="mail", do="pause").status_code == 303
    assert value(conn, "select actor from pgqueue.audit") == "bob"


def test_every_answer_carries_the_policy_and_no_page_needs_anything_inline(
    filled: psycopg.Connection, ask: Ask
) -> None:
    job = value(filled, "select max(id) from pgqueue.history")
    for page in ["/", "/queues", "/queue?name=mail", "/jobs", f"/jobs/{job}", "/nothing", "/health", "/audit"]:
        answer = ask("GET", page)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert re.search(r"\son\w+=|\sstyle=|<style|javascript:", answer.text) is None
        assert re.findall(r"<script(?![^>]* src=)[^>]*>", answer.text) == []


def test_a_reader_sees_and_cannot_act(
    filled: psycopg.Connection, role: Callable[[str], str], serve: Serve, ask: Ask
) -> None:
    address = serve(dsn=role("reader"))
    for page in [
        "/",
        "/queues",
        "/queue?name=mail",
        "/jobs",
        "/groups",
        f"/group?id={value(filled, 'select id from pgqueue.groups()')}",
        "/dead",
        "/tasks",
        "/workers",
        "/worker?name=w1",
        "/schedules",
        "/schedule?name=nightly",
        "/limits",
        "/audit",
        "/health",
    ]:
        answer = ask("GET", page, at=address)
        assert answer.status_code == 200, (page, answer.text[-2000:])
        forms = re.findall(r'<form[^>]*method="post".*?</form>', answer.text, re.DOTALL)
        assert [form for form in forms if "<button" in form] == [], page
        assert re.findall(r'name="(?:do|action|scope)"', answer.text) == [], page
        assert "read-only" in answer.text
    for path, form in [
        ("/queue", {"name": "mail", "do": "pause"}), ("/act", {"action": "cancel", "id": "1", "confirm": "yes"}),
        ("/limit", {"do": "drop", "kind": "queue", "target": "mail"}), ("/schedule", {"name": "nightly", "do": "run"}),
        ("/schedule", {"name": "nightly", "do": "run", "confirm": "yes"}),
        ("/schedule", {"name": "nightly", "do": "remove", "confirm": "yes"}),
        ("/schedule", {"name": "nightly", "do": "set", "expression": "* * * * *", "confirm": "yes"}),
        ("/worker", {"name": "w1", "do": "quiet"}), ("/worker", {"name": "w1", "do": "stop", "confirm": "yes"}),
        ("/task", {"name": "report", "option": "queue"}), ("/group", {"id": "1", "confirm": "yes"}),
    ]:  # fmt: skip
        assert ask("POST", path, at=address, **form).status_code == 403
    assert value(filled, "select count(*) from pgqueue.audit where via = 'web'") == 0


def test_a_producer_sees_nothing(
    filled: psycopg.Connection, role: Callable[[str], str], serve: Serve, ask: Ask
) -> None:
    answer = ask("GET", "/jobs", at=serve(dsn=role("producer")))
    assert answer.status_code == 403
    assert "send_email" not in answer.text


def test_an_operator_role_acts_and_read_only_takes_that_away(
    filled: psycopg.Connection, role: Callable[[str], str], serve: Serve, ask: Ask
) -> None:
    dsn = role("operator")
    assert ask("POST", "/queue", at=serve(dsn=dsn), name="mail", do="pause").status_code == 303
    assert ask("POST", "/queue", at=serve(dsn=dsn, read_only=True), name="mail", do="resume").status_code == 403


@pytest.mark.parametrize(
    ("right", "path", "form"),
    [
        ("act", "/queue", {"name": "mail", "do": "pause"}),
        ("act", "/group", {"id": "GROUP", "confirm": "yes"}),
        ("delete", "/act", {"action": "delete", "id": "1", "confirm": "yes"}),
        ("act", "/worker", {"name": "w1", "do": "quiet", "confirm": "yes"}),
        ("delete", "/worker", {"name": "w1", "do": "stop", "confirm": "yes"}),
        ("schedule", "/schedule", {"name": "nightly", "do": "pause", "confirm": "yes"}),
        ("schedule", "/schedule", {"name": "nightly", "do": "set", "timezone": "Europe/Berlin", "confirm": "yes"}),
        ("limits", "/limit", {"do": "drop", "kind": "queue", "target": "mail", "confirm": "yes"}),
    ],
)
def test_a_user_without_a_right_is_refused(
    filled: psycopg.Connection, serve: Serve, ask: Ask, right: str, path: str, form: dict[str, str]
) -> None:
    every = {"read", "args", "act", "delete", "schedule", "limits"}
    if form.get("id") == "GROUP":
        form = {**form, "id": str(value(filled, "select id from pgqueue.groups()"))}
    assert ask("POST", path, at=serve(can=every - {right}), **form).status_code == 403
    assert ask("POST", path, at=serve(can=every), **form).status_code == 303


class Markup(HTMLParser):
    """Collects what a browser would make of a page and ours never has: handlers, scripts and styles inline."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.found += [f"{tag} {name}" for name in names if name.startswith("on") or name == "style"]
        if tag in ("img", "iframe", "style", "object", "embed") or (tag == "script" and "src" not in names):
            self.found.append(tag)


def dangerous(page: str) -> list[str]:
    """Return the tags and attributes of a page that can run something."""
    markup = Markup()
    markup.feed(page)
    return markup.found


def test_markup_that_can_run_something_is_found() -> None:
    assert dangerous("<p>&lt;img src=x onerror=alert(1)&gt;</p><a title=' onerror=alert(1)'>x</a>") == []
    assert dangerous("<p title=''><img src=x onerror=alert(1)>") == ["img onerror", "img"]
    assert dangerous("<input value='a' onfocus='x'><script>x</script>") == ["input onfocus", "script"]


@pytest.mark.parametrize("text", [*HOSTILE[:2], *(pytest.param(text, marks=pytest.mark.long) for text in HOSTILE[2:])])
def test_no_text_of_a_producer_becomes_markup(conn: psycopg.Connection, ask: Ask, text: str) -> None:
    name = text[:60].encode()[:120].decode("utf-8", "ignore")
    call(conn, "declare_task", name)
    call(conn, "hello", name, [name], Jsonb({"host": text, "pid": text, "version": text, text: text}))
    job = enqueue(conn, name, {text: text}, queue=name, key=name, tags=[text], headers=Jsonb({text: text}))
    died = reserve_one(conn, name)
    call(
        conn, "fail", died.id, died.reservation, Jsonb({"class": text, "message": text, "traceback": text}), retry=False
    )
    again = enqueue(conn, name, {text: text}, queue=name, key=name, tags=[text])
    reserve_one(conn, name)
    call(conn, "set_limit", "key", name, max_executing=1)
    call(conn, "schedule", name, "0 3 * * *", name)
    call(conn, "pause_queue", name)
    group = call(conn, "open_group", name, tags=[text])
    [member] = enqueue_many(conn, 1, name, queue="flow", group_id=group)
    enqueue(conn, name, group_id=group, depends_on=[member])
    held = reserve_one(conn, name, queues=["flow"])
    assert call(conn, "complete_step", held.id, held.reservation, name, Jsonb({text: text}))
    call(conn, "await_event", held.id, held.reservation, "wait", name)
    maintain(conn)
    with httpx.Client(timeout=30) as client:
        pages = [
            *("/", "/queues", "/jobs", "/dead", "/tasks", "/workers", "/schedules", "/limits", "/audit", "/health"),
            *(f"/jobs/{job}", f"/jobs/{again}", f"/jobs/{member}", f"/jobs/{group}"),
            *("/groups", f"/group?id={group}", f"/jobs?q=group:{group}"),
            *(
                str(client.build_request("GET", f"http://x/{page}", params={"name": name}).url)[8:]
                for page in ("queue", "task", "worker")
            ),
        ]
    for page in pages:
        answer = ask("GET", page if page.startswith("/") else f"/{page}")
        assert answer.status_code == 200, page
        assert "<script>alert" not in answer.text
        assert "<img src=x" not in answer.text
        assert dangerous(answer.text) == []
        assert not re.search(r'(href|src|action)="javascript:', answer.text)
        assert "62773913" not in answer.text
        # A form sends a name back as it is; it is not read there.
        shown = re.sub(r' value="[^"]*"', "", answer.text)
        assert not set("\u202e\u2066\x1b\x07") & set(shown)


def test_an_error_of_a_megabyte_does_not_fill_the_page(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue(conn, queue="q")
    died = reserve_one(conn)
    error = {"class": "E", "message": "m" * 1_000_000, "traceback": "t" * 1_000_000}
    call(conn, "fail", died.id, died.reservation, Jsonb(error), retry=False)
    for page in [f"/jobs/{died.id}", "/jobs", "/dead", "/"]:
        assert len(ask("GET", page).text) < 100_000


@pytest.mark.parametrize(
    "path",
    [
        "/jobs?after=x",
        "/jobs?after=99999999999999999999",
        "/jobs?order=due&after=17",
        "/jobs?order=sideways",
        "/audit?before=-1",
        "/groups?before=x",
        "/group?id=-1",
        "/group?id=99999999999999999999",
        "/jobs?q=group:x",
        "/jobs?q=group:" + ",".join(map(str, range(30))),
    ],
)
def test_a_wrong_address_is_refused_and_not_an_error_of_ours(ask: Ask, path: str) -> None:
    assert ask("GET", path).status_code in (400, 404, 200)


@pytest.mark.long
def test_the_database_goes_away_and_comes_back(
    filled: psycopg.Connection, database: Database, serve: Serve, ask: Ask
) -> None:
    address = serve()
    assert ask("GET", "/audit", at=address).status_code == 200
    admin = psycopg.connect(uri(database.dsn, dbname="postgres"), autocommit=True)
    admin.execute(f"alter database {database.name} allow_connections false".encode())
    admin.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = %s and application_name = 'pgqueue web'",
        [database.name],
    )
    try:
        assert ask("GET", "/audit", at=address).status_code == 503
    finally:
        admin.execute(f"alter database {database.name} allow_connections true".encode())
        admin.close()
    wait_until(lambda: ask("GET", "/audit", at=address).status_code == 200, timeout=60)


def test_two_hundred_viewers_share_few_connections(filled: psycopg.Connection, serve: Serve) -> None:
    address = serve()
    with (
        ThreadPoolExecutor(200) as pool,
        httpx.Client(base_url=address, timeout=60, limits=httpx.Limits(max_connections=200)) as client,
    ):
        codes = list(pool.map(lambda _: client.get("/").status_code, range(200)))
    assert codes == [200] * 200
    assert (
        value(
            filled,
            "select count(*) from pg_stat_activity where application_name = 'pgqueue web'"
            " and datname = current_database()",
        )
        <= 4
    )


def test_an_address_that_others_reach_needs_a_login(run: Callable[..., object]) -> None:
    refused = run("web", "--host", "0.0.0.0")
    assert refused.code == 2  # type: ignore[attr-defined]
    assert "--user" in refused.err  # type: ignore[attr-defined]
    assert run("web", "--user", "x").code == 2  # type: ignore[attr-defined]


def test_many_jobs_are_listed_with_their_next_page(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 60, queue="mail")
    first = ask("GET", "/jobs?q=queue:mail").text
    [older] = re.findall(r'rel="next" href="([^"]*)"', first)
    assert len(re.findall(r'name="id"', first)) == 50
    assert len(re.findall(r'name="id"', ask("GET", older.replace("&amp;", "&")).text)) == 10
