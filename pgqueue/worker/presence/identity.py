"""A worker's name and the information that it registers. Only one process may have a name at a time.

Two processes of one name would give back each other's jobs. So a worker takes its name before it reserves anything,
and is refused while another process with that name is alive. A process that ended without deregistering is detected
at once on the same machine, else by its missing heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

from pgqueue import __version__
from pgqueue.config import WorkerConfig
from pgqueue.db import presence
from pgqueue.db.call import Call
from pgqueue.errors import ConfigError
from pgqueue.worker.link.outage import Outage
from pgqueue.worker.process import memory

log = logging.getLogger("pgqueue.worker")

# A worker gives a sign of life at each heartbeat; while idle, every 9 to 10 s.
_IDLE_HEARTBEAT = 10.0

# Tolerated delay of a sign of life, in seconds, before its worker counts as dead.
_LATE = 5.0

_POLL = 0.5

# Tasks that a worker reports by name; with more it reports none.
_MOST_TASKS = 500

# The supervisor of this process: a fact of the process, as its pid is.
_supervisor: dict[str, object] | None = None

# The workers of this process that have taken their names.
_alive: set[str] = set()


def set_supervisor(name: str, pid: int) -> None:
    """This process has a supervisor: its workers report that."""
    global _supervisor
    _supervisor = {"name": name, "pid": pid}


class Identity:
    """The information that a worker registers. `instance` names this worker and no other, under whatever name.

    `has_name` is true until another process takes it, because this one was silent for long.
    """

    def __init__(self, config: WorkerConfig, outage: Outage | None = None, tasks: Collection[str] = ()) -> None:
        self._config = config
        self._tasks = tasks
        self._outage = outage
        self.instance = secrets.token_hex(8)
        self.has_name = False
        # The dead process from which this one took the name.
        self._replaced: str | None = None

    @property
    def heartbeat(self) -> float:
        """Seconds between heartbeats: a third of the lease, a minute at the most."""
        return min(self._config.lease / 3, 60.0)

    def info(self) -> dict[str, object]:
        """Return the argument of `hello`."""
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "python": platform.python_version(),
            "concurrency": self._config.concurrency,
            "heartbeat": round(self.heartbeat, 3),
            "memory_limit": memory.limit(self._config.max_memory),
            "clock": round(time.time(), 3),
            "listen": self._config.listen,
            "pooled": self._config.pooled if self._outage is None else self._outage.pooled,
            # For explain(): which queues it serves first.
            "strategy": self._config.strategy,
            **({"weights": list(weights)} if (weights := self._config.weights) and len(set(weights)) > 1 else {}),
            # For explain(): whether it has a task that was declared once.
            **({"tasks": sorted(self._tasks)} if 0 < len(self._tasks) <= _MOST_TASKS else {}),
            "instance": self.instance,
            "processes_of": _process_table(),
            # Whether it is replaced at that limit.
            **({} if self._config.max_memory is None else {"max_memory": self._config.max_memory}),
            **({} if _supervisor is None else {"supervisor": _supervisor}),
        }

    async def take_name(self, perform: Callable[[Call[Any]], Awaitable[Any]]) -> None:
        """Take the name. Waits while it is not clear whether its last process is alive; ConfigError when it is."""
        name = self._config.name
        instead_of: str | None = None
        silent: float | None = None
        while True:
            other = await perform(presence.claim_name(name, self.info(), instead_of))
            if other is None:
                _alive.add(self.instance)
                self.has_name = True
                self._replaced = instead_of
                return
            info, silent_for = other
            before, silent = silent, silent_for.total_seconds()
            if before is not None and silent < before:
                raise _taken(name, info, silent)
            if _is_dead(info) or silent > _patience(info):
                instead_of = str(info.get("instance") or "") if isinstance(info, dict) else ""
                continue
            if before is None:
                log.info(
                    "a worker %s gave a sign of life %.0f s ago: waiting up to %.0f s to see whether it is alive",
                    name,
                    silent,
                    _patience(info) - silent,
                )
            await asyncio.sleep(_POLL)

    async def is_taken(self, perform: Callable[[Call[Any]], Awaitable[Any]]) -> bool:
        """Ask whether another process has taken the name meanwhile; then this one has it no more."""
        asking = presence.worker_command(self._config.name, "", self.instance)
        if await perform(asking) != "taken" or await self.takes_back(perform):
            return False
        self.has_name = False
        return True

    async def takes_back(self, perform: Callable[[Call[Any]], Awaitable[Any]]) -> bool:
        """Take the name back from the dead process that had it before; False: another one has it.

        A failover to an asynchronous standby may have forgotten that it changed hands.
        """
        if self._replaced is None:
            return False
        return await perform(presence.claim_name(self._config.name, self.info(), self._replaced)) is None

    def leave(self) -> None:
        """The worker has ended."""
        _alive.discard(self.instance)


def _taken(name: str, info: Any, silent: float) -> ConfigError:
    known = info if isinstance(info, dict) else {}
    return ConfigError(
        f"another worker named {name!r} is alive: process {known.get('pid')} on {known.get('host')},"
        f" last heartbeat {max(silent, 0.0):.1f} s ago",
        hint="stop it, or give each worker another name; without --name it is unique",
    )


def _patience(info: Any) -> float:
    """Seconds of silence after which the worker with this info counts as dead."""
    given = info.get("heartbeat") if isinstance(info, dict) else None
    heartbeat = given if isinstance(given, int | float) and 0 < given <= 60 else _IDLE_HEARTBEAT
    return max(heartbeat, _IDLE_HEARTBEAT) + _LATE


def _is_dead(info: Any) -> bool:
    """Return whether the worker with this info ran on this machine and has ended. False: not known here."""
    if not isinstance(info, dict) or not _process_table() or info.get("processes_of") != _process_table():
        return False
    if info.get("pid") == os.getpid():
        return info.get("instance") not in _alive
    try:
        os.kill(int(info["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return False
    return _is_zombie(int(info["pid"]))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


@lru_cache(maxsize=1)
def _process_table() -> str:
    """Identify the process table that this process sees: of this machine since its boot, or of a container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
