"""Metrics in the text format of Prometheus: of workers, as they count; of a database, by `pgqueue.metrics()`; and, for
how long jobs of a queue wait and run, by samples.

Needs prometheus-client (the extra `metrics`); see `is_available`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from importlib.util import find_spec
from typing import Any

from pgqueue.worker.tell.counts import BOUNDS, OUTCOMES, Entry, Times

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Queues that have a histogram, and tasks of queues whose attempts are counted: those of which most was counted.
_MOST_QUEUES, _MOST_TASKS = 500, 2000

# As pgqueue.metrics() returns them: name, labels, value.
Rows = Iterable[tuple[str, Mapping[str, str], float]]

_OF_WORKERS = {
    "running": ("gauge", "Handlers that run."),
    "free": ("gauge", "Slots that are free."),
    "buffered": ("gauge", "Jobs reserved and not started."),
    "concurrency": ("gauge", "Handlers that may run at the same time."),
    "succeeded": ("counter", "Jobs that succeeded."),
    "failed": ("counter", "Attempts that failed."),
    "memory": ("gauge", "Resident memory in bytes."),
    "memory_limit": ("gauge", "How many bytes its process may hold: --max-memory, or of its container or machine."),
    "uptime": ("gauge", "Seconds since the start."),
    "outage": ("gauge", "Seconds since the database became unusable."),
    "ready": ("gauge", "1 while it reserves jobs."),
}

OF_DATABASE = {
    "pgqueue_queue_jobs": "Jobs of a queue by state; due: waiting or failed, and may start now; scheduled: not yet.",
    "pgqueue_queue_counted_age_seconds": (
        "Age of the numbers of a queue of more than 10,000 jobs, at most 10 minutes; others are of the last sample."
    ),
    "pgqueue_queue_counted_to": (
        "Where the count of a queue stopped: numbers that high mean at least that many. Absent: it was counted in full."
    ),
    "pgqueue_queue_lag_seconds": "Age of the oldest job of a queue that is due.",
    "pgqueue_queue_stuck_seconds": (
        "Age of the oldest job of a queue that a limit or its key blocks, or whose task no worker knows;"
        " 0 while the queue is paused."
    ),
    "pgqueue_queue_late_seconds": (
        "How long the oldest job of a late queue has waited, by cause: see why_late(). unknown: beyond its hundred."
    ),
    "pgqueue_queue_oldest_attempt_seconds": "How long the oldest running attempt of a queue has run.",
    "pgqueue_queue_wait_seconds": (
        "How long jobs of a queue waited from due to reserved, first attempts: a histogram."
        " Only /metrics of the pages has it."
    ),
    "pgqueue_queue_run_seconds": (
        "How long handlers of jobs of a queue ran: a histogram. Only /metrics of the pages has it."
    ),
    "pgqueue_queue_attempts_total": (
        "Attempts by queue, task and outcome, as workers reported them. Only /metrics of the pages has it."
    ),
    "pgqueue_queue_paused": "1 while a queue is paused.",
    "pgqueue_pauses": "Queues, tasks and limit_keys that are paused, by kind and source.",
    "pgqueue_breakers_open": "Breakers that are open or half-open, by kind and state.",
    "pgqueue_workers": "Living workers that claim from a queue.",
    "pgqueue_slots": (
        "Slots of all living workers: running, overlong (for ten times the usual p95 of the task), free."
    ),
    "pgqueue_heartbeat_memory_bytes": "Resident memory of a living worker, as its last heartbeat reported it.",
    "pgqueue_tenant_jobs": (
        "Jobs of a limit_key that wait, the ten that have most, and (others);"
        " estimated from 40 blocks where the table has more."
    ),
    "pgqueue_dead_jobs": "Jobs among the newest 2,000 dead ones, by task, class and masked error: ten groups at most.",
    "pgqueue_events": "Events that are kept, as statistics of the server have it.",
    "pgqueue_event_waits": "Jobs that wait for an event, as statistics of the server have it.",
    "pgqueue_limit_executing": "Executing jobs under a limit.",
    "pgqueue_limit_waiting": "Jobs that wait for a limit.",
    "pgqueue_schedule_lag_seconds": "Seconds since a schedule was due and has not run.",
    "pgqueue_task_info": "1 for each task, with its queue and its owner.",
    "pgqueue_sample_age_seconds": "Age of the last sample; while it is old, the jobs of queues are counted instead.",
    "pgqueue_maintenance_age_seconds": "Seconds since maintain() last ran, or since the schema was installed.",
    "pgqueue_rescued_total": "Lapsed leases that were taken back.",
    "pgqueue_unblocked_total": "Jobs that were blocked without a reason, and released.",
    "pgqueue_partitions_overdue": "Partitions of history that should be dropped.",
    "pgqueue_dead_tuples": "Dead rows of a table.",
    "pgqueue_oldest_xmin_age_seconds": "Age of the oldest transaction that holds back vacuum.",
    "pgqueue_notify_queue_usage_ratio": "The used fraction of the queue of notifications.",
    "pgqueue_database_up": "1 while a database can be read; only with several databases.",
}


def is_available() -> bool:
    """Return whether prometheus-client is installed."""
    return find_spec("prometheus_client") is not None


def as_text(families: Iterable[Any]) -> bytes:
    """Write families of metrics."""
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415

    found = list(families)

    class Collector:
        def collect(self) -> Iterator[Any]:
            return iter(found)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return bytes(generate_latest(registry))


def of_database(rows: Rows) -> Iterator[Any]:
    """Return the families of the rows of `pgqueue.metrics()`."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

    by_name: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for name, labels, value in rows:
        by_name.setdefault(name, []).append((labels, value))
    for name, samples in by_name.items():
        names = list(samples[0][0])
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(name, OF_DATABASE.get(name, name), labels=names)
        for labels, value in samples:
            family.add_metric([str(labels[each]) for each in names], value)
        yield family


class QueueTimes:
    """How long jobs of each queue waited and ran, and how attempts of each task ended, in all samples that were added.

    What Prometheus counts only grows, and a sample tells of ten seconds: what serves these numbers adds samples up.
    `last` is the number of the last sample, None before the first.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self._times: dict[str, dict[str, Times]] = {"wait": {}, "run": {}}
        self._ends: dict[tuple[str, str], Counter[str]] = {}

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add samples: (number, queue, what ended by task). Without a queue: the number is the last one."""
        for number, queue, ended in rows:
            if queue is None:
                self.last = number
                continue
            self.last = max(number, self.last or 0)
            for task, entry in ended.items():
                for kind, times in self._times.items():
                    if kind in entry:
                        times.setdefault(queue, Times()).merge(entry[kind])
                self._ends.setdefault((queue, task), Counter()).update(
                    {outcome: entry[outcome] for outcome in OUTCOMES if outcome in entry}
                )

    def of(self, kind: str) -> list[tuple[str, Entry]]:
        """Return (queue, times), "wait" or "run", of the 500 queues of which most was counted, by name."""
        most = nlargest(_MOST_QUEUES, self._times[kind].items(), key=lambda each: sum(each[1].buckets))
        return [(queue, times.as_dict()) for queue, times in sorted(most, key=lambda each: each[0])]

    def ends(self) -> list[tuple[str, str, Mapping[str, int]]]:
        """Return (queue, task, attempts by outcome) of the 2,000 of which most was counted, by name."""
        most = nlargest(_MOST_TASKS, self._ends.items(), key=lambda each: each[1].total())
        return [(queue, task, counts) for (queue, task), counts in sorted(most, key=lambda each: each[0])]


def of_times(found: Mapping[str, QueueTimes]) -> Iterator[Any]:
    """Return the histograms of queues, and attempts; `found`: by the name of the database, "" for one alone."""
    from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415

    labels = ["queue"] if "" in found else ["database", "queue"]
    name = "pgqueue_queue_attempts_total"
    attempts = CounterMetricFamily(name, OF_DATABASE[name], labels=[*labels, "task", "outcome"])
    for database, each in found.items():
        for queue, task, counts in each.ends():
            for outcome, count in counts.items():
                attempts.add_metric([*filter(None, [database]), queue, task, outcome], count)
    yield attempts
    for kind in ("wait", "run"):
        name = f"pgqueue_queue_{kind}_seconds"
        samples = [
            ([*filter(None, [database]), queue], times)
            for database, each in found.items()
            for queue, times in each.of(kind)
        ]
        yield _histogram(name, OF_DATABASE[name], labels, samples)


def of_several(found: Mapping[str, Rows], missing: Iterable[str]) -> list[tuple[str, dict[str, str], float]]:
    """Return the rows of several databases as those of one, with the label `database`, and which can be read."""
    rows = [
        (name, {"database": database, **labels}, value)
        for database, rows_of_one in found.items()
        for name, labels, value in rows_of_one
    ]
    rows += [("pgqueue_database_up", {"database": database}, 1.0) for database in found]
    return rows + [("pgqueue_database_up", {"database": database}, 0.0) for database in missing]


def of_workers(status: Mapping[str, Any], ended: Sequence[Entry]) -> Iterator[Any]:
    """Return the families of a worker's status, or of a supervisor's with all of its workers, and of ended jobs."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

    workers = [each for worker in status.get("workers", [status]) for each in ([worker, *worker.get("databases", ())])]
    several = any("database" in each for each in workers)
    labels = ["worker", "database"] if several else ["worker"]

    def values(each: Mapping[str, Any]) -> list[str]:
        return [str(each.get(label, "")) for label in labels]

    for name, (kind, help_text) in _OF_WORKERS.items():
        family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(
            f"pgqueue_worker_{name}", help_text, labels=labels
        )
        for each in _of_which(workers, name):
            family.add_metric(values(each), float(each.get(name) or 0))
        yield family
    slots = GaugeMetricFamily("pgqueue_worker_slots", "Slots of a worker by state.", labels=[*labels, "state"])
    for state in ("running", "free"):
        for each in _of_which(workers, state):
            slots.add_metric([*values(each), state], float(each.get(state) or 0))
    yield slots
    yield _histogram(
        "pgqueue_reserve_seconds",
        "Time of a call that claims jobs.",
        labels,
        [(values(each), each["claims"]) for each in workers if each.get("claims")],
    )
    yield from _of_ends(ended)


def _of_which(workers: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Return the sources of a number: each database if it is counted for each, so that no sum has it twice."""
    found = []
    for each in workers:
        is_told_apart = any(name in database for database in each.get("databases", ()))
        if name in each or "database" not in each:
            found += [] if is_told_apart else [each]
    return found


def _of_ends(ended: Sequence[Entry]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415

    names = ["database", "queue", "task"] if any("database" in entry for entry in ended) else ["queue", "task"]

    def values(entry: Entry) -> list[str]:
        return [entry.get(name, "") for name in names]

    jobs = CounterMetricFamily("pgqueue_jobs_total", "Attempts by outcome.", labels=[*names, "outcome"])
    for entry in ended:
        for outcome in OUTCOMES:
            if outcome in entry:
                jobs.add_metric([*values(entry), outcome], entry[outcome])
    yield jobs
    for name, text in (("run", "How long handlers ran."), ("wait", "From due to reserved, of first attempts.")):
        samples = [(values(entry), entry[name]) for entry in ended if name in entry]
        yield _histogram(f"pgqueue_job_{name}_seconds", text, names, samples)


def _histogram(name: str, text: str, labels: list[str], samples: Iterable[tuple[list[str], Entry]]) -> Any:
    from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415

    family = HistogramMetricFamily(name, text, labels=labels)
    for values, times in samples:
        total, buckets = 0, []
        for bound, count in zip([*map(str, BOUNDS), "+Inf"], times["buckets"], strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(values, buckets, times["sum"])
    return family
