"""The page of workers: memory, and processes under their supervisor."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import psycopg
from psycopg.types.json import Jsonb

from tests.calls import call

Ask = Callable[..., httpx.Response]


def register(conn: psycopg.Connection, worker: str, memory: int, **info: object) -> None:
    call(conn, "hello", worker, None, Jsonb({"host": "web-1", "pid": 17, "memory": memory << 20, **info}))


def test_processes_stand_under_their_supervisor_with_what_they_hold(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "a:1", 80, supervisor={"name": "a", "pid": 4000})
    register(conn, "b:1", 70, supervisor={"name": "b", "pid": 5000}, host="web-2")
    register(conn, "a:2", 120, supervisor={"name": "a", "pid": 4000})
    register(conn, "alone", 50)
    text = " ".join(re.sub(r"<[^>]+>", " ", ask("GET", "/workers").text).split())
    # Each name also stands on the buttons of its row.
    order = [
        "Without a supervisor", " alone ", "Supervisor a pid 4000 on web-1, 2 processes, 200 MiB", " a:1 ", "80 MiB",
        " a:2 ", "120 MiB", "Supervisor b pid 5000 on web-2, 1 process, 70 MiB", " b:1 ",
    ]  # fmt: skip
    places = [text.find(each) for each in order]
    assert -1 not in places
    assert places == sorted(places)


def test_workers_without_any_supervisor_stand_under_no_heading(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "alone", 50)
    # A client in another language may register with any JSON.
    call(conn, "hello", "odd", None, Jsonb({"supervisor": ["x"], "clock_ahead": {}}))
    call(conn, "hello", "odder", None, Jsonb([1]))
    text = ask("GET", "/workers").text
    assert "upervisor" not in text
    assert "50 MiB" in text
    for name in ("odd", "odder"):
        assert ask("GET", f"/worker?name={name}").status_code == 200


def test_the_page_of_a_worker_shows_its_memory_its_supervisor_and_its_clock(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "a:1", 80, supervisor={"name": "a", "pid": 4000}, clock=0)
    text = ask("GET", "/worker?name=a:1").text
    assert "80 MiB" in text
    assert "a, pid 4000" in text
    assert re.search(r"\d+\.\d s behind the server", text)
