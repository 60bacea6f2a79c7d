"""The handlers of the chaos tests: what `pgqueue worker -r tests.chaos.tasks` runs.

Each records in the file of its process what it starts and how it ends. Those with a transaction of their job leave an
effect in it.

CHAOS_RECORDS   the directory of those files
CHAOS_CLOCK     seconds by which time.time() and its kin are off in this process: the clock of another machine
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from pgqueue import App, Job, Throttled, emit_event
from pgqueue.errors import EventTimeout
from tests.chaos.checker import COMMITTED
from tests.chaos.recorder import EFFECT, Intent, ProducerLog, Witness
from tests.chaos.workflow_recorder import StepWitness

app = App()
witness = Witness.of_this_process(os.environ["CHAOS_RECORDS"])
steps = StepWitness(Path(os.environ["CHAOS_RECORDS"]))
promises = ProducerLog(Path(os.environ["CHAOS_RECORDS"]))

_off = float(os.environ.get("CHAOS_CLOCK", "0"))
if _off:
    # What reads the clock by datetime.now() goes past this; the worker reads it so only to show a deadline.
    _true, _true_ns = time.time, time.time_ns
    time.time = lambda: _true() + _off
    time.time_ns = lambda: _true_ns() + int(_off * 1e9)

# A fault must not make a job dead: that is an end as well, but one that hides others.
_STUBBORN: dict[str, Any] = {
    "max_attempts": 10_000,
    "max_crashes": 1_000,
    "retry_policy": "fixed",
    "retry_delay": timedelta(seconds=0.3),
}


class Refused(Exception):
    """What a handler raises on purpose."""


@app.task(**_STUBBORN)
async def plain(job: Job, token: str) -> None:
    witness.ran(job.id, job.reservation)


@app.task(**_STUBBORN)
def plain_sync(job: Job, token: str) -> None:
    witness.ran(job.id, job.reservation)


@app.task(**_STUBBORN)
async def keyed(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(random.random() * 0.004)


@app.task(**_STUBBORN)
def keyed_sync(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        time.sleep(random.random() * 0.004)


@app.task(**_STUBBORN)
async def flaky(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(0.001)
        if random.random() < 0.3:
            raise Refused("this time not")
        if random.random() < 0.03:
            raise Throttled(after=0.3, reason="429")


@app.task(**_STUBBORN)
async def slow(job: Job, token: str) -> None:
    """Longer than a lease, now and then."""
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(random.choice((0.2, 0.5, 1.0, 4.0)))


@app.task(**_STUBBORN)
async def steady(job: Job, token: str) -> None:
    """Long enough to be running when something happens to its worker."""
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(0.05)


@app.task(**_STUBBORN)
async def lasting(job: Job, token: str, seconds: float) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(seconds)


@app.task(**_STUBBORN)
def holding(job: Job, token: str) -> None:
    """Keeps the interpreter's lock, for longer than 5 s as a rule: no other thread of the process runs.

    Where a lease is shorter than that, the job is done by an attempt that is short.
    """
    usual = sys.getswitchinterval()
    with witness.running(job.id, job.reservation):
        # Time for a thread that waits already.
        time.sleep(2 * usual)
        sys.setswitchinterval(60)
        try:
            until = time.monotonic() + random.choice((1.0, 5.5, 5.5))
            while time.monotonic() < until:
                pass
        finally:
            sys.setswitchinterval(usual)


@app.task(**_STUBBORN, store_result=True)
async def large_result(job: Job, token: str) -> str:
    with witness.running(job.id, job.reservation):
        return token * (8_000_000 // len(token))


@app.task(**_STUBBORN)
def large_error(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        if random.random() < 0.5:
            raise Refused(f"{token}\n" * (20_000_000 // len(token)))


@app.task(**_STUBBORN)
async def cancelling(job: Job, token: str) -> None:
    """Cancels its own task, at once or when the job is over, or the slots of its worker."""
    me = asyncio.current_task()
    assert me is not None
    with witness.running(job.id, job.reservation):
        match random.choice(("now", "and waits", "later", "slots")):
            case "now":
                me.cancel()
            case "and waits":
                me.cancel()
                await asyncio.sleep(0)
            case "later":
                asyncio.get_running_loop().call_later(random.random() * 0.1, me.cancel)
            case "slots":
                for each in asyncio.all_tasks():
                    if each.get_name() == "pgqueue-runner":
                        each.cancel()


@app.task(**_STUBBORN)
def stubborn(job: Job, token: str) -> None:
    """Goes on when its lease is lost."""
    with witness.running(job.id, job.reservation):
        time.sleep(random.choice((0.1, 0.3, 4.0)))


@app.task(**_STUBBORN)
async def effect(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        async with job.transaction() as conn:
            await conn.execute(EFFECT, _effect(job))
            await asyncio.sleep(random.random() * 0.01)
            if random.random() < 0.05:
                raise Refused("rolled back")
            witness.done(job.id, job.reservation)


@app.task(**_STUBBORN)
def effect_sync(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation), job.transaction() as conn:
        conn.execute(EFFECT, _effect(job))
        time.sleep(random.random() * 0.01)
        witness.done(job.id, job.reservation)


@app.task(**_STUBBORN)
async def limited(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(0.01)


@app.task(**_STUBBORN)
async def slotted(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(0.01)


@app.task(**_STUBBORN)
async def rated(job: Job, token: str) -> None:
    witness.ran(job.id, job.reservation)


@app.task(accumulate=True, batch_size=3, **_STUBBORN)
async def gathered(payloads: dict[str, list[Any]], job: Job) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(0.005)


@app.task(**_STUBBORN)
async def linked(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(random.random() * 0.005)


@app.task(**{**_STUBBORN, "max_attempts": 1})
async def fails(job: Job, token: str) -> None:
    """Dead at once, unless a consumer in SQL takes it."""
    with witness.running(job.id, job.reservation):
        raise Refused("always")


@app.task(**_STUBBORN)
def member(job: Job, token: str, kind: str, depth: int) -> None:
    """Brings others into its group, and ends with them in one transaction."""
    with witness.running(job.id, job.reservation):
        mine = secrets.token_hex(6)
        with job.transaction() as conn:
            rows = conn.execute(
                "select * from pgqueue.enqueue_many('member', %s, queue => 'stories', group_id => %s)",
                [[Jsonb({"token": mine, "kind": kind, "depth": depth - 1})] * (2 if depth else 0), job.id],
            ).fetchall()
            promises.intends(mine, [Intent(new, kind, "stories", None, 0.0) for (new,) in rows])
            time.sleep(random.random() * 0.005)
            witness.done(job.id, job.reservation)
        promises.learns(mine, COMMITTED, len(rows))


@app.task(**_STUBBORN)
def emitting(job: Job, token: str, event: str) -> None:
    with witness.running(job.id, job.reservation):
        with psycopg.connect(os.environ["PGQUEUE_DSN"], connect_timeout=3) as own:
            emit_event(own, event, {"by": job.id, "reservation": job.reservation})
            time.sleep(random.random() * 0.02)
        steps.emitted(event)


@app.task(**_STUBBORN)
def story_sync(job: Job, token: str, event: str, within: str | None, parts: int) -> None:
    """Steps, jobs of its own that it awaits, a sleep, and an event from elsewhere."""
    with witness.running(job.id, job.reservation):
        steps.got(job.id, job.reservation, "first", job.step("first", _draw, job, "first"))
        if parts:
            paid = job.step("pay", _pay, job, parts)
            steps.got(job.id, job.reservation, "pay", paid)
            with witness.leaving(job.id, job.reservation):
                job.wait(paid)
            steps.awaited(job.id, job.reservation, paid)
        with witness.leaving(job.id, job.reservation):
            job.sleep("nap", "50 ms")
        try:
            with witness.leaving(job.id, job.reservation):
                payload = job.wait_event(event, within)
            _arrived(job, event, payload)
        except EventTimeout:
            steps.got(job.id, job.reservation, event, {"event": event, "arrived": False})
        _fail_sometimes()
        steps.got(job.id, job.reservation, "last", job.step("last", _draw, job, "last"))


@app.task(**_STUBBORN)
async def story(job: Job, token: str, event: str, within: str | None, parts: int) -> None:
    """As story_sync."""
    with witness.running(job.id, job.reservation):
        steps.got(job.id, job.reservation, "first", await job.step("first", _draw, job, "first"))
        if parts:
            paid = await job.step("pay", asyncio.to_thread, _pay, job, parts)
            steps.got(job.id, job.reservation, "pay", paid)
            with witness.leaving(job.id, job.reservation):
                await job.wait(paid)
            steps.awaited(job.id, job.reservation, paid)
        with witness.leaving(job.id, job.reservation):
            await job.sleep("nap", "50 ms")
        try:
            with witness.leaving(job.id, job.reservation):
                payload = await job.wait_event(event, within)
            _arrived(job, event, payload)
        except EventTimeout:
            steps.got(job.id, job.reservation, event, {"event": event, "arrived": False})
        _fail_sometimes()
        steps.got(job.id, job.reservation, "last", await job.step("last", _draw, job, "last"))


def _draw(job: Job, name: str) -> int:
    """Another number each time, so that it shows who drew."""
    steps.calls(job.id, job.reservation, name)
    return secrets.randbelow(10**9)


def _pay(job: Job, parts: int) -> list[int]:
    """The step, its effect and the jobs that it starts are committed together."""
    steps.calls(job.id, job.reservation, "pay")
    mine = secrets.token_hex(6)
    with psycopg.connect(os.environ["PGQUEUE_DSN"], connect_timeout=3) as own:
        query = "select * from pgqueue.enqueue_many('linked', %s, queue => 'graphs')"
        started = [new for (new,) in own.execute(query, [[Jsonb({"token": mine})] * parts])]
        own.execute("insert into chaos.payments values (%s, 'pay')", [job.id])
        if not job.complete_step(own, "pay", started):
            raise Refused("the lease is lost")
        promises.intends(mine, [Intent(new, "node", "graphs", None, 0.0) for new in started])
    promises.learns(mine, COMMITTED, parts)
    return started


def _arrived(job: Job, event: str, payload: object) -> None:
    steps.got(job.id, job.reservation, event, {"event": event, "arrived": True, "payload": payload})


def _fail_sometimes() -> None:
    if random.random() < 0.2:
        raise Refused("after the event")


def _effect(job: Job) -> dict[str, Any]:
    return {"job": job.id, "reservation": job.reservation, "queue": job.queue, "key": job.key}
