"""The stacks of all threads and asyncio tasks, as text for the log.

The signal is handled by Python itself and not by the event loop, so it also shows code that blocks the loop.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

log = logging.getLogger("pgqueue.stacks")

# Frames of each stack, and stacks of each kind, that are shown.
_FRAMES = 30
_STACKS = 1000

NameTask = Callable[["asyncio.Task[Any]"], str]
NameThread = Callable[[int], str]


def dump_on(
    number: signal.Signals, loop: asyncio.AbstractEventLoop, name_task: NameTask, name_thread: NameThread
) -> None:
    """Log all stacks at this signal. The names describe a task or thread (by its ident); "": nothing known.

    To be called in the main thread.
    """

    def dump() -> None:
        try:
            log.warning("%s", describe(loop, name_task, name_thread))
        except Exception:
            log.exception("the stacks cannot be shown")

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        # In a separate thread: this one may be in the middle of a write to the log.
        threading.Thread(target=dump, name="pgqueue-stacks", daemon=True).start()

    signal.signal(number, on_signal)


def describe(
    loop: asyncio.AbstractEventLoop, name_task: NameTask = lambda _: "", name_thread: NameThread = lambda _: ""
) -> str:
    """Write the stacks of all threads and of the tasks of `loop`, those that run a job first."""
    tasks = sorted(
        ((name_task(task), task) for task in asyncio.all_tasks(loop)),
        key=lambda each: (not each[0], each[1].get_name()),
    )
    frames = sys._current_frames()
    threads = sorted(
        (
            (name_thread(each.ident), each, frames[each.ident])
            for each in threading.enumerate()
            if each.ident in frames and each is not threading.current_thread()
        ),
        key=lambda each: (not each[0], each[1].name),
    )
    lines = [f"stacks of {len(threads)} threads and {len(tasks)} asyncio tasks"]
    for name, thread, frame in threads[:_STACKS]:
        lines.append(f"--- thread {thread.name}{name and f': {name}'}")
        lines += _lines(traceback.extract_stack(frame))
    for name, task in tasks[:_STACKS]:
        lines.append(f"--- task {task.get_name()}{name and f': {name}'}")
        lines += _lines(_stack_of(task))
    if max(len(tasks), len(threads)) > _STACKS:
        lines.append(f"... of each kind {_STACKS} are shown")
    return "\n".join(lines)


def of_one(place: asyncio.Task[Any] | int) -> list[str]:
    """Write the stack of a task of this loop, or of the thread of this ident."""
    if isinstance(place, asyncio.Task):
        return _lines(_stack_of(place))
    frame = sys._current_frames().get(place)
    return ["    (its thread has ended)"] if frame is None else _lines(traceback.extract_stack(frame))


def _stack_of(task: asyncio.Task[Any]) -> traceback.StackSummary:
    """Follow what a task awaits down to where it waits; Task.get_stack() shows the outermost frame only."""
    frames: list[tuple[FrameType, int]] = []
    waiting: Any = task.get_coro()
    seen: set[CodeType | int] = set()
    while waiting is not None and id(waiting) not in seen:
        seen.add(id(waiting))
        frame = next(
            (
                found
                for found in (getattr(waiting, name, None) for name in ("cr_frame", "gi_frame", "ag_frame"))
                if found is not None
            ),
            None,
        )
        if frame is not None:
            frames.append((frame, frame.f_lineno or 0))
        waiting = next(
            (
                found
                for found in (getattr(waiting, name, None) for name in ("cr_await", "gi_yieldfrom", "ag_await"))
                if found is not None
            ),
            None,
        )
    return traceback.StackSummary.extract(iter(frames), lookup_lines=True)


def _lines(stack: traceback.StackSummary) -> list[str]:
    left_out = len(stack) - _FRAMES
    shown = [
        f"    {frame.name} ({frame.filename}:{frame.lineno}){f': {frame.line}' if frame.line else ''}"
        for frame in stack[-_FRAMES:]
    ]
    return ([f"    ... {left_out} outer frames"] if left_out > 0 else []) + (shown or ["    (nothing to show)"])
