"""The pages below a prefix of an app of another framework, with the code that docs/operate/web.md gives for each."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.calls import value
from tests.databases import Database
from tests.docs.pages import ROOT, blocks
from tests.facts import wait_until

SETTINGS = """
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
SECRET_KEY = "x"
"""
URLS = """
from django.http import HttpResponse
from django.urls import path

urlpatterns = [path("own", lambda request: HttpResponse("of the site"))]
"""


def code(framework: str) -> str:
    """Return what the page says for a framework."""
    found = [block.text for block in blocks("docs/operate/web.md") if block.language == "python"]
    # Django's has Starlette too.
    return next(
        each for each in found if "dashboard(" in each and re.search(rf"^from {framework}\b", each, re.MULTILINE)
    )


def started(framework: str, database: Database, directory: Path) -> tuple[str, dict[str, str]]:
    """Write the app to a directory; return its name for uvicorn, and what the environment needs."""
    if framework == "fastapi":
        # "The same way".
        text = code("starlette").replace("from starlette.applications import Starlette", "from fastapi import FastAPI")
        text = text.replace("Starlette()", "FastAPI()")
    else:
        text = code(framework)
    assert "postgresql:///app" in text
    (directory / "mounted.py").write_text(text.replace('"postgresql:///app"', repr(database.dsn)))
    (directory / "site_settings.py").write_text(SETTINGS)
    (directory / "urls.py").write_text(URLS)
    name = "application" if framework == "django" else "app"
    return f"mounted:{name}", {"DJANGO_SETTINGS_MODULE": "site_settings"} if framework == "django" else {}


@pytest.mark.long
@pytest.mark.parametrize(
    "framework",
    [
        # Frameworks are in the extra for tests alone; one that is absent costs only its own case.
        pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed"))
        for name in ("starlette", "fastapi", "litestar", "django")
    ],
)
def test_the_pages_work_below_a_prefix(
    framework: str, filled: psycopg.Connection, database: Database, tmp_path: Path
) -> None:
    name, environment = started(framework, database, tmp_path)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "--port", str(port), "--log-level", "warning", name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))), **environment},
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, verify=False) as client:
            wait_until(lambda: answers(client) or server.poll() is not None)
            look(client)
            follow_the_links(client)
            act(client, filled)
            if framework == "django":
                assert client.get("/own").text == "of the site"
    finally:
        server.terminate()
        server.wait(60)


def answers(client: httpx.Client) -> bool:
    try:
        client.get("/nothing")
    except httpx.TransportError:
        return False
    return True


def look(client: httpx.Client) -> None:
    for path in ("/jobs/", "/jobs/queues", "/jobs/queue?name=mail", "/jobs/jobs?q=state:dead", "/jobs/health"):
        answer = client.get(path)
        assert answer.status_code == 200, path
        links = re.findall(r'(?:href|src|action|hx-get)="([^"]*)"', answer.text)
        assert links
        assert [link for link in links if not link.startswith(("/jobs/", "#"))] == [], path
    assert "Pause" in client.get("/jobs/queue?name=mail").text
    assert client.get("/jobs/nothing").status_code == 404


def follow_the_links(client: httpx.Client) -> None:
    text = client.get("/jobs/").text
    addresses = sorted(set(re.findall(r'(?:href|src)="(/[^"]*)"', text)))
    assert [each for each in addresses if each.endswith("app.js")] != []
    for address in addresses:
        answer = client.get(address.replace("&amp;", "&"))
        assert answer.status_code == 200, address
        # Files are served as such, and every answer carries the policy.
        assert answer.headers["cache-control"].endswith("immutable") == ("/static/" in address)
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def act(client: httpx.Client, conn: psycopg.Connection) -> None:
    page = client.get("/jobs/queue?name=mail").text
    [action] = set(re.findall(r'<form[^>]*action="([^"]*/queue)"', page))
    own = {"sec-fetch-site": "same-origin"}
    paused = "select exists (select from pgqueue.pauses where target = 'mail')"
    assert client.post(action, data={"name": "mail", "do": "pause"}).status_code == 403
    assert (
        client.post(action, data={"name": "mail", "do": "pause"}, headers=own)
        .headers["location"]
        .startswith("/jobs/queue?")
    )
    assert value(conn, paused) is True
    assert value(conn, "select actor || ' ' || via from pgqueue.audit order by n desc limit 1") == "alice web"
