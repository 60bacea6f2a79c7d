"""What an attacker sends that httpx would put right first, and what a producer may store."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from pgqueue import __version__
from tests.calls import enqueue, enqueue_many, value
from tests.web.conftest import Serve

Ask = Callable[..., httpx.Response]

STATIC = f"/static/{__version__}"


def raw(address: str, target: str) -> tuple[int, bytes]:
    """Send a request whose target stays as it is; return the code and all that came."""
    at = urlsplit(address)
    assert at.hostname is not None
    with socket.create_connection((at.hostname, at.port), timeout=20) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {at.netloc}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(answer.split(b" ", 2)[1]), answer


def test_a_file_is_served_to_a_raw_request(serve: Serve) -> None:
    code, answer = raw(serve(), f"{STATIC}/app.js")
    assert code == 200
    assert b"Live refresh" in answer


@pytest.mark.parametrize(
    "path",
    [
        "/../app.py",
        "/../../web/app.py",
        "/%2e%2e/app.py",
        "/..%2fapp.py",
        "/%2e%2e%2fapp.py",
        "/..%5capp.py",
        "/vendor/../../app.py",
        "/./../app.py",
        "//etc/passwd",
        "/%2fetc/passwd",
        "/../../../../../../../../../../etc/passwd",
        "/%252e%252e/app.py",
        "/app.py%00.js",
        "/vendor/",
        "/vendor",
        "/",
    ],
)
def test_nothing_but_static_files_is_served_as_such(serve: Serve, path: str) -> None:
    code, answer = raw(serve(), STATIC + path)
    assert code == 404
    assert b"root:" not in answer
    assert b"import" not in answer


def test_a_nul_is_refused(filled: psycopg.Connection, ask: Ask) -> None:
    for path in (
        *("/jobs?q=%00", "/jobs?q=queue:a%00b", "/jobs?q=error:%22%00%22", "/jobs?order=%00", "/jobs?after=%00"),
        *("/queue?name=%00", "/queue?name=mail%00", "/task?name=%00", "/worker?name=w1%00", "/schedule?name=%00"),
        *("/series?queue=%00", "/series?range=%00", "/dead?queue=%00", "/audit?before=%00", "/groups?before=%00"),
        "/group?id=%00",
    ):
        answer = ask("GET", path)
        assert answer.status_code == 400, path
        assert "NUL" in answer.text, path
    for path, form in [
        ("/queue", {"name": "mail\0", "do": "pause"}),
        ("/act", {"action": "cancel", "scope": "all", "q": "queue:mail\0"}),
        ("/limit", {"kind": "queue", "target": "mail\0", "max_executing": "1"}),
        ("/schedule", {"name": "nightly\0", "do": "run", "confirm": "yes"}),
        ("/worker", {"name": "w1\0", "do": "quiet", "confirm": "yes"}),
        ("/task", {"name": "report\0", "option": "queue"}),
        ("/task", {"name": "report", "option": "queue\0"}),
        ("/group", {"id": "1\0", "confirm": "yes"}),
    ]:
        assert ask("POST", path, **form).status_code == 400, (path, form)
    assert value(filled, "select count(*) from pgqueue.audit where via = 'web'") == 0


@pytest.mark.parametrize("args", ["text", "list", "nested"])
def test_args_of_a_megabyte_are_shown_cut(conn: psycopg.Connection, ask: Ask, args: str) -> None:
    made = {"text": "y" * 1_000_000, "list": ["y" * 9] * 80_000, "nested": {"a": [{"b": "y" * 500_000}] * 2}}[args]
    job = enqueue(conn, "load", {"first": 17, "then": made}, queue="mail")
    for page in (f"/jobs/{job}", "/jobs", "/jobs?q=queue:mail"):
        text = ask("GET", page).text
        assert len(text) < 150_000, page
        assert "y" * 101_000 not in text
    [document] = re.findall(r'<pre[^>]*aria-label="Args">(.*?)</pre>', ask("GET", f"/jobs/{job}").text, re.DOTALL)
    length = len(value(conn, "select args::text from pgqueue.jobs"))
    assert document == f"{length:,} characters of JSON: too long for a page"


def test_a_preview_shows_the_newest_five_of_all_that_match(conn: psycopg.Connection, ask: Ask) -> None:
    jobs = enqueue_many(conn, 8, "send_email", queue="mail")
    enqueue_many(conn, 3, "other", queue="other")
    text = ask("POST", "/act", action="cancel", scope="all", q="queue:mail").text
    assert "Cancel: 8 jobs?" in text
    assert "The newest of them:" in text
    shown = re.findall(r'<li><a href="/jobs/(\d+)">job (\d+)</a> (\w+) in (\w+) ', text)
    assert shown == [(str(job), str(job), "send_email", "mail") for job in sorted(jobs, reverse=True)[:5]]
    few = ask("POST", "/act", action="cancel", scope="all", q=f"id:{jobs[0]},{jobs[1]}").text
    assert "These:" in few
    assert len(re.findall(r"<li><a href=\"/jobs/", few)) == 2
