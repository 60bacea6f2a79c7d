"""The worker stays one that can be followed: objects get objects, and a job goes down, by few calls."""

from __future__ import annotations

import ast
import logging
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import pytest

import pgqueue
from pgqueue import App
from pgqueue.worker.hold.held import Held
from pgqueue.worker.run.isolation import Isolation
from pgqueue.worker.run.threads import Threads
from pgqueue.worker.trade.exchange import Reply
from tests.calls import enqueue
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working

FOLDER = Path(pgqueue.__file__).parent / "worker"
MODULES = {file: ast.parse(file.read_text()) for file in FOLDER.rglob("*.py")}

# What a worker gives to the jobs that it runs, which are lower than it.
JOB = ast.parse((FOLDER.parent / "job.py").read_text())
OF_JOBS = ("Surroundings", "Execution")

# Functions that constructors take, or have set later. Of these one calls upwards by design: a connection that was made
# introduces the worker. The other ones are functions of the user: of tasks, and the two of a codec.
MOST_CALLABLES = 4

# Calls from one module of worker/ into another which the way of one job has, from the reply of its claim to the reply
# that its end is stored.
MOST_CALLS = 18


def callables() -> list[str]:
    """List the functions that constructors of the worker take, or have set later."""
    trees = [*MODULES.values(), JOB]
    aliases = {"Callable"} | {
        target.id
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Callable[")
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return [
        f"{kind.name}: {name}"
        for tree in trees
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef) and not _is_decorator(kind) and (tree is not JOB or kind.name in OF_JOBS)
        for name, annotation in _given(kind)
        if aliases & {each.id for each in ast.walk(annotation) if isinstance(each, ast.Name)}
    ]


def test_constructors_take_objects_and_hardly_a_function() -> None:
    assert len(callables()) <= MOST_CALLABLES, callables()


def test_there_is_no_lambda_where_workers_are_put_together() -> None:
    for name in ("worker.py", "fleet.py"):
        assert not any(isinstance(node, ast.Lambda) for node in ast.walk(MODULES[FOLDER / name])), name


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_claimed_job_goes_down_by_few_calls(
    database: Database, conn: psycopg.Connection, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # As `pgqueue worker` has it: each end has its line.
    caplog.set_level(logging.INFO, "pgqueue")
    app = App()

    async def on_loop() -> None:
        pass

    def in_thread() -> None:
        pass

    app.task(on_loop if is_async else in_thread, name="t")
    ways: list[Way] = [Way()]
    # Threads of handlers live as long as the worker.
    threading.setprofile(lambda *call: ways[-1].follow(*call))
    # Without listening, for a job that is handed over is not claimed.
    async with working(app, database.dsn, listen=False, poll_interval=0.02) as worker:
        # Other work of the worker may come between, the more the busier the machine: the shortest way counts.
        while len(ways) < 20 and not any(way.is_short() for way in ways[3:]):
            ways.append(Way())
            sys.setprofile(ways[-1].follow)
            try:
                await done(conn, enqueue(conn))
                # Told, too.
                await wait_until_async(lambda: worker.status()["held"] == 0)
            finally:
                sys.setprofile(None)
    threading.setprofile(None)
    way = min(ways[1:], key=lambda each: len(each.calls))
    steps = {(caller, called) for caller, called, _ in way.calls}
    assert ("trade.trade", "trade.intake") in steps
    assert ("run.handlers", "tell.tell") in steps
    assert ("trade.exchange", "link.connection") in steps
    assert len(way.calls) <= MOST_CALLS, "\n".join(map(str, way.calls))
    assert [step for step in steps if step[0] in _imports(step[1])] == []


class Way:
    """The calls between modules of worker/ which are given a job, or made within a call that was.

    A thread begins with the call that was handed to it, and so does the task of a handler, which is begun at once and
    not by the event loop: neither is a caller.
    """

    BEGINNINGS = (Threads._work.__code__, Isolation._start.__code__)

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        # By frame, whether it works on a job. Frames are kept, so that none gets the place of another.
        self._seen: dict[FrameType, bool] = {}

    def is_short(self) -> bool:
        """Whether it keeps to the budget."""
        return 0 < len(self.calls) <= MOST_CALLS

    def follow(self, frame: FrameType, event: str, _: object) -> None:
        """As sys.setprofile has it called."""
        # A coroutine that goes on is seen again.
        if event != "call" or frame in self._seen or not (called := _module(frame)):
            return
        caller = frame.f_back
        while caller is not None and not _module(caller):
            caller = caller.f_back
        if caller is not None and caller.f_code in self.BEGINNINGS:
            caller = None
        code = frame.f_code
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        is_given = any(_carries_job(frame.f_locals.get(name)) for name in given)
        self._seen[frame] = is_given or (caller is not None and self._seen.get(caller, False))
        if self._seen[frame] and caller is not None and _module(caller) != called:
            self.calls.append((_module(caller), called, code.co_name))


def _module(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return ".".join(path.relative_to(FOLDER).with_suffix("").parts) if path.is_relative_to(FOLDER) else ""


def _carries_job(value: Any) -> bool:
    if isinstance(value, Reply):
        return bool(value.completed or value.failed or value.claimed)
    return isinstance(value, Held) or (isinstance(value, list | tuple) and any(map(_carries_job, value)))


def _is_decorator(kind: ast.ClassDef) -> bool:
    return any(isinstance(each, ast.FunctionDef) and each.name == "__get__" for each in kind.body)


def _given(kind: ast.ClassDef) -> list[tuple[str, ast.expr]]:
    """Return the arguments of a class's constructor, and the public attributes that others may set."""
    found: list[tuple[str, ast.expr]] = []
    if any("dataclass" in ast.unparse(each) for each in kind.decorator_list):
        fields = [each for each in kind.body if isinstance(each, ast.AnnAssign)]
        found += [(ast.unparse(each.target), each.annotation) for each in fields]
    for method in kind.body:
        if not isinstance(method, ast.FunctionDef) or method.name != "__init__":
            continue
        arguments = [*method.args.args, *method.args.kwonlyargs]
        found += [(each.arg, each.annotation) for each in arguments if each.annotation is not None]
        found += [
            (node.target.attr, node.annotation)
            for node in ast.walk(method)
            if isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Attribute)
            and not node.target.attr.startswith("_")
        ]
    return found


def _imports(module: str) -> set[str]:
    """Return the modules of worker/ that this one imports, or those do."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        tree = MODULES[FOLDER.joinpath(*waiting.pop().split(".")).with_suffix(".py")]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pgqueue.worker."):
                name = str(node.module).removeprefix("pgqueue.worker.")
                names = [name] if FOLDER.joinpath(*name.split(".")).with_suffix(".py") in MODULES else []
                new = [each for each in names if each not in found]
                found.update(new)
                waiting += new
    return found
