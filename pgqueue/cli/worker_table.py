"""Workers as a table, with the dead ones explained below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgqueue.cli import output
from pgqueue.cli.output import ago
from pgqueue.cli.tables import Table
from pgqueue.logs import how_many

# The state by an operator's command, and whether the worker has reported that it follows it.
_COMMANDED = {
    ("quiet", True): "quiet",
    ("quiet", False): "to be quiet",
    ("stop", True): "stopping",
    ("stop", False): "to stop",
    ("kill", True): "killed",
    ("kill", False): "to be killed",
}


def show(workers: Sequence[dict[str, Any]]) -> None:
    """Print one line for each worker; then the dead workers and their leases.

    If rows have a `database`, that is the first column.
    """
    if not workers:
        output.line("No worker is registered.")
        return
    headings = ("worker", "queues", "state", "jobs", "lapsed", "heartbeat", "started", "memory", "version")
    cut = frozenset({"database", "worker", "queues", "version"})
    several = "database" in workers[0]
    table = Table(
        ("database", *headings) if several else headings, "Workers", frozenset({"jobs", "lapsed", "memory"}), cut
    )
    for each in workers:
        served = ", ".join(each["queues"]) if each["queues"] else "all" if each["started_at"] else ""
        # A client in another language may register with any JSON.
        info = each["info"] if isinstance(each["info"], dict) else {}
        times = (ago(each["last_heartbeat_at"]), ago(each["started_at"]))
        place = (each["database"],) if several else ()
        state = (_state(each), each["executing"], each["lapsed"])
        table.add(*place, each["worker"], served, *state, *times, _memory(each["memory"]), info.get("version"))
    table.show()
    for each in workers:
        if each["lapsed"] or not each["is_alive"]:
            output.line(f"{each['database']}: {_trouble(each)}" if several else _trouble(each), "red")


def _memory(size: int | None) -> str | None:
    return None if size is None else f"{size / 2**20:,.0f} MiB"


def _state(worker: dict[str, Any]) -> str:
    if worker["is_alive"]:
        return _COMMANDED.get((worker["command"], worker["obeyed_at"] is not None), "alive")
    return "silent" if worker["started_at"] else "gone"


def _trouble(worker: dict[str, Any]) -> str:
    name, held, lapsed = worker["worker"], worker["executing"], worker["lapsed"]
    if worker["is_alive"]:
        said = f"Worker {name} is alive"
    elif worker["started_at"]:
        said = f"Worker {name} is silent: last heartbeat {ago(worker['last_heartbeat_at']) or 'never'}"
    else:
        said = f"Worker {name} is gone, or not registered"
    if not held:
        return f"{said}; it holds no job."
    jobs = how_many(held, "job")
    if lapsed:
        return f"{said}; it holds {jobs}, {lapsed} with a lapsed lease, which maintenance gives back."
    return f"{said}; it holds {jobs}, to run again when the lease lapses."
