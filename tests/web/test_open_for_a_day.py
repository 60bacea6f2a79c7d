"""A page that is open for a day: what the browser and the server hold does not grow with the number of its refreshes.

PGQUEUE_WEB_POLLS refreshes, 3,000 by default, a day's worth being 17,280 (every 5 s); the queue changes meanwhile, so
that most of them morph the page. What grows after the first third is taken for a leak.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import CDPSession, Page, sync_playwright

from tests.calls import enqueue_many, maintain
from tests.databases import Database
from tests.web.chromium import ARGUMENTS, PATH

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PATH is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.timeout(3600),
]

POLLS = int(os.environ.get("PGQUEUE_WEB_POLLS", "3000"))
ROUNDS = 30
A_DAY = 86_400 // 5

REFRESH = """
async (polls) => {
  for (let n = 0; n < polls; n++) {
    await new Promise((done) => {
      document.addEventListener("htmx:afterRequest", () => setTimeout(done), { once: true });
      htmx.trigger(document.getElementById("live"), "refresh");
    });
    const range = document.querySelector("input[name=range]:checked");
    if (range && n % 2 === 0) range.dispatchEvent(new Event("change", { bubbles: true }));
  }
}
"""


@pytest.fixture
def server(database: Database) -> Iterator[tuple[str, int]]:
    """Yield the address and the process id of `pgqueue web`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "pgqueue", "web", "--dsn", database.dsn, "--port", str(port)])
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{address}/audit", timeout=10).read()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.1)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait(60)


def resident(pid: int) -> float:
    """Return the MiB of memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def held(session: CDPSession) -> dict[str, float]:
    """Return what the page holds, after garbage was collected: MiB of heap, nodes, listeners."""
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    heap = found["JSHeapUsedSize"] / 2**20
    return {"heap": heap, "nodes": found["Nodes"], "listeners": found["JSEventListeners"]}


@pytest.mark.parametrize("path", ["/", "/jobs", "/groups"])
def test_neither_the_page_nor_the_server_grows(
    conn: psycopg.Connection, server: tuple[str, int], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    address, pid = server
    enqueue_many(conn, 60, queue="mail", tags=["vip"])
    group = conn.execute("select pgqueue.open_group('import')").fetchone()
    assert group
    enqueue_many(conn, 20, queue="imports", group_id=group[0])
    maintain(conn)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PATH, args=ARGUMENTS)
        page = browser.new_page()
        page.set_default_timeout(600_000)
        page.goto(address + path)
        page.locator("#interval").select_option("0")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        numbers = measure(conn, page, session, pid)
        browser.close()
    first, last = numbers[len(numbers) // 3], numbers[-1]
    polls = POLLS * (len(numbers) - 1 - len(numbers) // 3) / ROUNDS
    with capsys.disabled():
        sys.stdout.write(f"\n{path}: {POLLS} refreshes; first third {first}, end {last}\n")
    assert (last["heap"] - first["heap"]) / polls * A_DAY < 5
    assert (last["rss"] - first["rss"]) / polls * A_DAY < 30
    assert last["nodes"] <= first["nodes"] * 1.1 + 100
    assert last["listeners"] <= first["listeners"] * 1.1 + 20


def measure(conn: psycopg.Connection, page: Page, session: CDPSession, pid: int) -> list[dict[str, float]]:
    numbers = []
    for number in range(ROUNDS):
        enqueue_many(conn, 1, queue="mail")
        maintain(conn)
        page.evaluate(REFRESH, POLLS // ROUNDS)
        numbers.append({**held(session), "rss": resident(pid), "round": number})
    return numbers
