"""How much memory a process holds, and may hold."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from pgqueue.errors import ConfigError

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def resident(pid: int | None = None) -> int:
    """Return the resident memory of a process in bytes, by default of this one; 0 when it is not known."""
    pid = os.getpid() if pid is None else pid
    found = _by_proc(str(pid))
    return _by_ps(pid) if found is None else found


def reported() -> int | None:
    """Return the resident memory of this process for a heartbeat; None where it takes another process to know it."""
    return _by_proc("self")


@lru_cache(maxsize=8)
def limit(configured: int | None = None) -> int | None:
    """Return how many bytes a process here may hold: the least of `configured`, its control groups and the machine."""
    known = [*([] if configured is None else [configured]), *_of_control_groups(), *_of_machine()]
    return min(known, default=None)


def parse(text: str) -> int:
    """Read "500M", "1.5 GB" or a number of bytes. Raises ConfigError."""
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    size = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if size < 2**20:
        raise ConfigError(f"{text!r} is not an amount of memory for a worker", hint="give it as 500M or 2G")
    return size


def _of_control_groups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Yield the limits of the control groups around this process: of version 2, as Kubernetes and systemd make them."""
    try:
        place = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return
    folder = root / place.lstrip("/")
    for each in (folder, *folder.parents):
        if not each.is_relative_to(root):
            return
        # The word max: no limit.
        with suppress(OSError, ValueError):
            yield int((each / "memory.max").read_text())


def _of_machine() -> Iterator[int]:
    with suppress(OSError, ValueError):
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _by_proc(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _by_ps(pid: int) -> int:
    # Where there is no /proc.
    try:
        done = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return int(done.stdout) * 1024
    except (OSError, ValueError):
        return 0
