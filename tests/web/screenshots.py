"""Takes pictures of the pages: of a demo database and an empty one on a server of its own, or of those at an address.

python -m tests.web.screenshots DIRECTORY [ADDRESS]: every page, wide and narrow, light and dark.
python -m tests.web.screenshots --docs DIRECTORY: those that the docs show, small.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from pgqueue import embedded
from pgqueue.schema.migrate import migrate
from pgqueue.web import User, dashboard
from tests.web.chromium import ARGUMENTS, PATH
from tests.web.scene import live_on, play

PAGES = {
    "overview": "/",
    "queues": "/queues",
    "jobs": "/jobs?q=state:failed,dead,executing",
    "groups": "/groups",
    "dead": "/dead",
    "tasks": "/tasks",
    "workers": "/workers",
    "schedules": "/schedules",
    "limits": "/limits",
    "tenants": "/tenants",
    "events": "/events",
    "audit": "/audit",
    "health": "/health",
}
# One of many: its page, where there is a link to one.
ONE = {
    "job": ("/jobs?q=state:dead", r"/jobs/\d+"),
    "running": ("/jobs?q=state:executing+queue:imports", r"/jobs/\d+"),
    "masks": ("/dead", r'/dead\?open=\w+#group-\w+(?="[^>]*>[^<]*<span[^>]*> of TimeoutError)'),
    "group": ("/groups", r"/group\?id=\d+"),
    "queue": ("/queues", r"/queue\?name=payments"),
    "task": ("/tasks", r"/task\?name=charge_card"),
    "worker": ("/workers", r"/worker\?name=[^\"]+"),
    "schedule": ("/schedules", r"/schedule\?name=[^\"]+"),
}
# What the docs show: the page, the width, the scheme, and how much of its height.
IN_DOCS = {
    "overview": (1280, "light", 940),
    "jobs": (1280, "light", 760),
    "job": (1280, "light", 900),
    "masks": (1280, "light", 860),
    "queue": (1280, "light", 1160),
    "group": (1280, "dark", 760),
    "workers": (1280, "dark", 560),
    "schedules": (1280, "light", 456),
    "phone": (390, "light", 844),
}

# Bytes of a picture in the docs, at most.
SMALL = 150_000


def take(address: str, directory: Path) -> None:
    """Write <page>-<width>-<scheme>.png for each page of the server at this address."""
    directory.mkdir(parents=True, exist_ok=True)
    with _browser() as browser:
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                page = _open(browser, width, scheme)
                for name, path in _paths(page, address).items():
                    _settle(page, address + path)
                    page.screenshot(path=directory / f"{name}-{width}-{scheme}.png", full_page=True)
                page.close()


def take_for_docs(address: str, directory: Path) -> None:
    """Write the pictures of the docs, each of at most 150 kB."""
    from PIL import Image  # noqa: PLC0415

    directory.mkdir(parents=True, exist_ok=True)
    with _browser() as browser:
        for name, (width, scheme, height) in IN_DOCS.items():
            page = _open(browser, width, scheme, height)
            _settle(page, address + _paths(page, address)["overview" if name == "phone" else name])
            path = directory / f"{name}.png"
            page.screenshot(path=path)
            page.close()
            Image.open(path).convert("RGB").save(path, optimize=True)
            if path.stat().st_size > SMALL:
                raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {SMALL}")


@contextmanager
def _browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PATH, args=ARGUMENTS)
        yield browser
        browser.close()


def _open(browser: Browser, width: int, scheme: str, height: int = 900) -> Page:
    return browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]


def _settle(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_timeout(400)


def _paths(page: Page, address: str) -> dict[str, str]:
    paths = dict(PAGES)
    for name, (of, link) in ONE.items():
        found = re.search(rf'href="({link})"', page.request.get(address + of).text())
        if found:
            paths[name] = found[1].replace("&amp;", "&")
    return paths


@contextmanager
def served(*, full: bool) -> Iterator[str]:
    """Serve the pages of a demo database, or of an empty one, on a server of its own; yields their address."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "server"
        dsn = embedded.start(directory)
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                # As a careful operator sets it.
                conn.execute(f"alter database {conn.info.dbname} set idle_in_transaction_session_timeout = '10 min'")
            migrate(dsn)
            if full:
                with psycopg.connect(dsn, autocommit=True) as conn:
                    play(conn)
            app = dashboard(dsn, authorize=lambda request: User("mara"))
            listener = socket.create_server(("127.0.0.1", 0))
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
            thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
            thread.start()
            while not server.started:
                time.sleep(0.02)
            ended = threading.Event()
            living = threading.Thread(target=_live, args=(dsn, ended), daemon=True)
            if full:
                living.start()
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            ended.set()
            server.should_exit = True
            thread.join(10)
        finally:
            embedded.stop(directory)


def _live(dsn: str, ended: threading.Event) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        while not ended.wait(3):
            live_on(conn)


def main(arguments: list[str]) -> None:
    """Take what the arguments ask for."""
    if arguments[0] == "--docs":
        with served(full=True) as address:
            take_for_docs(address, Path(arguments[1]))
    elif len(arguments) > 1:
        take(arguments[1].rstrip("/"), Path(arguments[0]))
    else:
        for name in ("full", "empty"):
            with served(full=name == "full") as address:
                take(address, Path(arguments[0]) / name)


if __name__ == "__main__":
    main(sys.argv[1:])
