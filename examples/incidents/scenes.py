"""The incidents: how each happens, what the first screen says of it, and when it is over."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from examples.incidents.stage import Stage
from examples.incidents.tasks import FIXED
from pgqueue.db import observe
from pgqueue.db.call import perform


@dataclass(frozen=True, slots=True)
class Incident:
    """`queue` is asked by why_late(), or `topic` is a finding of doctor(); one of the two.

    `evidence` is a pattern of what that says. `shown`: the words by which the first screen names the cause, in its
    sentence or in the row of the queue. `ways`: how many ways out are printed. `before` is what an operator has to do
    first, such as a deploy. `after` is how long the incident stands before it is one.
    """

    name: str
    says: str
    happen: Callable[[Stage], None]
    cured: Callable[[Stage], bool]
    evidence: str
    shown: tuple[str, ...]
    queue: str = ""
    cause: str = ""
    topic: str = ""
    ways: int = 1
    before: Callable[[Stage], None] | None = None
    after: str = ""

    def found(self, stage: Stage) -> dict[str, Any] | None:
        """Return what the first screen knows: cause or topic, subject, evidence, remedy; None before it stands."""
        # As the pages ask: of all queues that are late.
        if self.queue:
            late = perform(stage.conn, observe.why_late())
            return next(
                (each for each in late if (each["queue_name"], each["cause"]) == (self.queue, self.cause)), None
            )
        findings = [each for each in perform(stage.conn, observe.doctor()) if each["topic"] == self.topic]
        return next((each for each in findings if re.search(self.evidence, each["evidence"])), None)


def _deaths(stage: Stage) -> None:
    stage.enqueue("charge", "payments", "jsonb_build_object('order', n)", stage.many(1800, 40))
    stage.worker("--queue", "payments")
    stage.until(lambda: not stage.live("task = 'charge'"))


def _deploy_the_fix(stage: Stage) -> None:
    stage.stop_workers()
    stage.worker("--queue", "payments", **{FIXED: "yes"})


def _none_is_dead(stage: Stage) -> bool:
    return not stage.live("task = 'charge'") and not stage.value(
        "select count(*) from pgqueue.history where task = 'charge' and state = 'dead'"
    )


def _flood(stage: Stage) -> None:
    order, email = "jsonb_build_object('order', n)", "jsonb_build_object('to', n || '@example.org')"
    stage.enqueue("call_webhook", "mail", order, stage.many(20_000, 1000), due="9 min", limit_key="tenant:acme")
    stage.enqueue("send_email", "mail", email, 10, due="5 min", limit_key="tenant:small")
    stage.worker("--queue", "mail", "--concurrency", "4")


def _slots(stage: Stage) -> None:
    slots = stage.many(12, 2)
    stage.enqueue("review_case", "reviews", "jsonb_build_object('case', n)", slots, due="40 min")
    stage.enqueue("send_email", "mail", "jsonb_build_object('to', n || '@example.org')", 60)
    stage.worker("--concurrency", str(slots))
    stage.until(lambda: stage.started("review_case") == slots)
    stage.age()


def _starved(stage: Stage) -> None:
    stage.enqueue("call_webhook", "webhooks", "jsonb_build_object('order', n)", stage.many(40_000, 600), due="9 min")
    stage.enqueue("send_email", "mail", "jsonb_build_object('to', n || '@example.org')", 2, due="5 min")
    stage.worker("--queue", "webhooks", "--queue", "mail", "--concurrency", "2")


def _queue_limit(stage: Stage) -> None:
    stage.conn.execute("select pgqueue.set_limit('queue', 'reports', max_executing => 2)")
    stage.enqueue("make_report", "reports", "jsonb_build_object('month', n)", 4)
    stage.worker("--queue", "reports")
    stage.until(lambda: stage.started("make_report") == 2)


def _rate(stage: Stage) -> None:
    most = stage.many(100, 5)
    stage.conn.execute("select pgqueue.set_limit('task', 'sync_stock', rate => %s, per => '1 hour')", [most])
    stage.enqueue("sync_stock", "stock", "jsonb_build_object('item', n)", 2 * most)
    stage.worker("--queue", "stock")
    stage.until(lambda: stage.live("task = 'sync_stock' and state = 'blocked'") == most)


def _key(stage: Stage) -> None:
    stage.enqueue("check_account", "fraud", "jsonb_build_object('step', n)", 37, key="account:17")
    stage.worker("--queue", "fraud")
    stage.until(lambda: stage.live("task = 'check_account' and state = 'blocked'") == 36)


def _unknown_task(stage: Stage) -> None:
    stage.enqueue("sned_email", "mail", "jsonb_build_object('to', n || '@example.org')", 3)
    stage.worker("--queue", "mail")


def _no_worker(stage: Stage) -> None:
    stage.enqueue("sync_stock", "stock", "jsonb_build_object('item', n)", 10)
    stage.worker("--queue", "mail")


def _left_paused(stage: Stage) -> None:
    stage.conn.execute("select pgqueue.pause_queue('mail')")
    stage.conn.execute("update pgqueue.pauses set at = at - interval '26 hours'")
    stage.enqueue("send_email", "mail", "jsonb_build_object('to', n || '@example.org')", 5, due="25 hours")
    stage.worker()


def _few_workers(stage: Stage) -> None:
    email = "jsonb_build_object('to', n || '@example.org', 'takes', 1)"
    stage.enqueue("send_email", "mail", email, stage.many(1200, 120), due="10 min")
    stage.worker("--queue", "mail", "--concurrency", "1")


def _old_snapshot(stage: Stage) -> None:
    report = psycopg.connect(stage.dsn, application_name="a report")
    stage.sessions.append(report)
    report.execute("set transaction isolation level repeatable read")
    report.execute("select count(*) from pgqueue.jobs")


def _memory(stage: Stage) -> None:
    limit = stage.many(1024, 400) << 20
    grown = f"jsonb_build_object('to', {int(limit * 0.94)}, 'seconds', {stage.many(60, 4)})"
    stage.enqueue("grow", "imports", grown, due="1 s")
    stage.worker("--queue", "imports", "--processes", "1", "--max-memory", f"{limit >> 20}M")


def _ignored_cancel(stage: Stage) -> None:
    stage.enqueue("crunch", "mail", "jsonb_build_object('batch', n)", due="40 min")
    stage.enqueue("send_email", "mail", "jsonb_build_object('to', n || '@example.org')", 60)
    stage.worker("--queue", "mail", "--processes", "1", "--concurrency", "1")
    stage.until(lambda: stage.started("crunch"))
    stage.conn.execute("select pgqueue.cancel(id) from pgqueue.jobs where task = 'crunch'")
    stage.age()


INCIDENTS = {
    each.name: each
    for each in (
        Incident(
            "deaths",
            "1,800 jobs died of one error, with other ids in each message.",
            _deaths,
            _none_is_dead,
            r"[\d,]+ of [\d,]+ attempts within ten minutes failed, the last one with \S*CardRefused",
            ("charge", "CardRefused"),
            topic="failures",
            before=_deploy_the_fix,
        ),
        Incident(
            "flood",
            "One customer enqueued thousands of jobs, and the others wait behind them.",
            _flood,
            lambda stage: (
                not stage.live("limit_key = 'tenant:small'") and bool(stage.live("limit_key = 'tenant:acme'"))
            ),
            r"of the .* jobs that are due are of tenant tenant:acme, enqueued since 20",
            ("of tenant tenant:acme",),
            queue="mail",
            cause="flood",
        ),
        Incident(
            "slots",
            "All slots are held by handlers that wait for an answer that does not come.",
            _slots,
            lambda stage: not stage.live("queue = 'mail'"),
            r"(?=.*\breview_case\b)(?=.*\b(\d+) of \1 slots of worker incident-0\b).*the oldest for 40 min",
            ("slots", "review_case"),
            queue="mail",
            cause="slots",
        ),
        Incident(
            "starved",
            "The workers serve the backlog of another queue first.",
            _starved,
            lambda stage: not stage.live("queue = 'mail'") and bool(stage.live("queue = 'webhooks'")),
            r"its workers serve first: queue webhooks, priority 0 \([\d,]+ .*due\)",
            ("serve", "webhooks"),
            queue="mail",
            cause="starved",
            ways=2,
        ),
        Incident(
            "queue_limit",
            "A queue is at its limit, and jobs wait for capacity.",
            _queue_limit,
            lambda stage: stage.started("make_report") == 4,
            r"2 of 2 jobs execute under the limit queue:reports; it holds back 2 jobs",
            ("under the limit queue:reports",),
            queue="reports",
            cause="limit",
        ),
        Incident(
            "rate",
            "A task has had all the starts that its rate allows within the hour.",
            _rate,
            lambda stage: not stage.live("task = 'sync_stock'"),
            r"([\d,]+) of \1 jobs started within 01:00:00 under the limit task:sync_stock; it holds back \1 jobs",
            ("under the limit task:sync_stock",),
            queue="stock",
            cause="limit",
        ),
        Incident(
            "key",
            "36 jobs wait behind one job of their key, and nothing is due.",
            _key,
            lambda stage: not stage.live("task = 'check_account'"),
            r"36 jobs blocked, most behind key account:17: job \d+ of key account:17 executes on worker",
            ("36 jobs blocked", "key account:17"),
            queue="fraud",
            cause="key",
        ),
        Incident(
            "unknown_task",
            "A producer misspelled the name of a task.",
            _unknown_task,
            lambda stage: not stage.live("task = 'sned_email'"),
            r"no worker has declared task sned_email; .* did you mean send_email\?",
            ("worker has declared task sned_email", "did you mean send_email?"),
            queue="mail",
            cause="unknown_task",
        ),
        Incident(
            "no_worker",
            "No worker serves a queue.",
            _no_worker,
            lambda stage: not stage.live("queue = 'stock'"),
            r"the queue has 10 jobs due since .*, and no living worker claims from it",
            ("no living worker claims from it",),
            queue="stock",
            cause="no_worker",
        ),
        Incident(
            "left_paused",
            "Somebody paused a queue yesterday, and forgot it.",
            _left_paused,
            lambda stage: not stage.live("queue = 'mail'"),
            r"5 jobs due, and is paused since .* by",
            ("aused",),
            queue="mail",
            cause="paused",
        ),
        Incident(
            "few_workers",
            "More jobs come in than the workers can run.",
            _few_workers,
            lambda stage: not stage.live("queue = 'mail'"),
            r"the oldest of [\d,]+ jobs is due since .*\b[01] of 1 slots of worker incident-0\b",
            ("do not keep up",),
            queue="mail",
            cause="workers",
        ),
        Incident(
            "old_snapshot",
            "A report holds a snapshot, and vacuum can remove nothing.",
            _old_snapshot,
            lambda stage: not stage.value("select count(*) from pg_stat_activity where application_name = 'a report'"),
            r"session \d+ \(role \S+, a report, .* since .*, holds back vacuum by",
            ("old snapshot", "session", "a report"),
            topic="old_snapshot",
            after="15 min",
        ),
        Incident(
            "memory",
            "A worker grows to its limit of memory.",
            _memory,
            lambda stage: (
                not stage.value("select count(*) from pgqueue.doctor() where topic = 'memory'")
                and not stage.live("task = 'grow'")
            ),
            r"it holds \d+ MB, 9\d % of its limit of \d+ MB; .* ago it held \d+ MB; it runs 1 grow, the longest job",
            ("it runs 1 grow",),
            topic="memory",
        ),
        Incident(
            "ignored_cancel",
            "A sync handler does not end when its job is cancelled.",
            _ignored_cancel,
            lambda stage: not stage.live("queue = 'mail'"),
            r"(?=.*\bcrunch\b).*\b1 of 1 slots of worker incident-0:1\b.*asked to cancel",
            ("slots", "crunch"),
            queue="mail",
            cause="slots",
        ),
    )
}
