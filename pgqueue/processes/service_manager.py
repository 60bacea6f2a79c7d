"""Reports to systemd, for a service with Type=notify: READY, RELOADING, STOPPING, STATUS, and its watchdog.

The protocol is a datagram of VARIABLE=value lines to the socket of NOTIFY_SOCKET, see sd_notify(3). If the variable is
not set, nothing is sent. Everything is sent from the event loop that claims jobs (in a supervisor: that watches
workers): a process whose loop is blocked for WatchdogSec is killed and started again.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

# Seconds between two checks of what has changed, and between two lines of text while only their numbers change.
_TICK = 0.5
_TEXT_EVERY = 5.0


_PHASES = {"ready": ["READY=1"], "reloading": ["RELOADING=1"], "stopping": ["STOPPING=1"]}


@dataclass(slots=True)
class ServiceState:
    """The state for a service manager: `phase` is starting, ready, reloading or stopping; `text` is for people."""

    phase: str
    text: str


class ServiceManager:
    """The socket of the service manager. `watchdog` is the time in seconds within which it expects signs of life."""

    def __init__(self, address: str, watchdog: float | None) -> None:
        self.watchdog = watchdog
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._phase = "starting"
        self._text = ""
        self._text_at = -math.inf
        self._alive_at = -math.inf

    @classmethod
    def take(cls, environ: MutableMapping[str, str] = os.environ) -> ServiceManager | None:
        """Return it if there is one, and remove its variables, so that no child process reports for this one."""
        address = environ.pop("NOTIFY_SOCKET", "")
        microseconds = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        if not address.startswith(("/", "@")):
            return None
        is_ours = microseconds.isdecimal() and int(microseconds) > 0 and pid in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 1e6 if is_ours else None)

    async def notify_forever(self, status: Callable[[], dict[str, Any]]) -> None:
        """Report the `status` of a worker or supervisor when it changes, and signs of life; until cancelled."""
        tick = min(_TICK, self.watchdog / 4) if self.watchdog else _TICK
        try:
            while True:
                self.report(status())
                await asyncio.sleep(tick)
        finally:
            # Also reports a stop within one tick.
            self.report(status())

    def report(self, status: dict[str, Any]) -> None:
        """Send changes, and a sign of life when it is time for one."""
        state, now = state_of(status), time.monotonic()
        lines = []
        has_turned = state.phase != self._phase and self._phase != "stopping"
        if has_turned:
            lines += _PHASES.get(state.phase, [])
            if state.phase == "reloading":
                lines.append(f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        has_text = state.text != self._text and (has_turned or now >= self._text_at + _TEXT_EVERY)
        if has_text:
            lines.append(f"STATUS={state.text}")
        is_due = self.watchdog is not None and now >= self._alive_at + self.watchdog / 3
        if is_due:
            lines.append("WATCHDOG=1")
        if lines and not self._send("\n".join(lines)):
            return
        self._phase = state.phase if has_turned else self._phase
        self._text, self._text_at = (state.text, now) if has_text else (self._text, self._text_at)
        self._alive_at = now if is_due else self._alive_at

    def _send(self, message: str) -> bool:
        # A manager that restarts, or whose queue is full, gets it next time: that must not stop a worker.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as found:
            found.setblocking(False)
            found.sendto(message.encode(), self._address)
            return True
        return False


def state_of(status: dict[str, Any]) -> ServiceState:
    """Return the state of a worker, or of a supervisor, by its status.

    A worker is ready from its first claim on. If it loses its database later, the text says so.
    """
    if status.get("stopping"):
        phase = "stopping"
    elif status.get("reloading"):
        phase = "reloading"
    else:
        phase = "ready" if status.get("started") or status.get("ready") else "starting"
    reason = " ".join(str(status.get("reason") or "").split())[:200]
    numbers = ", ".join(f"{status.get(name, 0)} {name}" for name in ("running", "succeeded", "failed"))
    return ServiceState(phase, f"{reason or phase}: {numbers}")
