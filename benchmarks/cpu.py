"""The CPU time of a server on this machine, from the times of its own processes."""

from __future__ import annotations

import os
from pathlib import Path

from .harness import Connection

_TICKS = os.sysconf("SC_CLK_TCK")


def server_seconds(connection: Connection) -> float:
    """Return the seconds of CPU that the server has used so far: sessions that have ended, and all that live.

    RuntimeError where the server is not a process of this machine.
    """
    [backend] = connection.execute("select pg_backend_pid()").fetchone() or [0]
    try:
        server = int(_stat(int(str(backend)))[1])
        own = _stat(server)
        living = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    except OSError as error:
        raise RuntimeError("the processes of the server are not on this machine") from error
    # Ticks of its own, and of the children that it has waited for.
    ticks = sum(map(int, own[11:15]))
    for pid in living:
        try:
            ticks += sum(map(int, _stat(int(pid))[11:13]))
        except OSError:
            # It has ended since: its ticks are among those of the server by the next time.
            continue
    return ticks / _TICKS


def backend_seconds(connection: Connection) -> float:
    """Return the seconds of CPU that the session of `connection` has used so far, to nanoseconds; as server_seconds."""
    try:
        return int(Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError as error:
        raise RuntimeError("the processes of the server are not on this machine") from error


def _stat(pid: int) -> list[str]:
    # From the state on, which follows the name; a name may hold spaces.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
