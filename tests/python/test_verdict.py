"""The sentence on top: which of the queues that were late still is, and by how much."""

from __future__ import annotations

from typing import Any

from pgqueue import verdict


def numbers(queue: str, lag: float, stuck_for: float = 0.0) -> dict[str, Any]:
    return {"queue": queue, "lag": lag, "stuck_for": stuck_for, "paused_at": None, "due": 3, "length": 3}


def cause(queue: str, lag: float, stuck_for: float = 0.0) -> dict[str, Any]:
    return {
        "queue_name": queue, "severity": "warning", "cause": "workers", "subject": queue, "evidence": "", "remedy": "",
        "lag": lag, "stuck_for": stuck_for,
    }  # fmt: skip


def test_one_lateness_has_one_age_although_its_cause_was_read_before_its_numbers() -> None:
    queues = [numbers("mail", 95.0), numbers("sms", 0.0, stuck_for=400.0)]
    late = verdict.still_late([cause("mail", 40.0), cause("sms", 0.0, stuck_for=350.0)], queues)
    assert verdict.reach(late, (), queues).lag == verdict.age(queues[0]) == 95.0
    assert verdict.reach(late[1:], (), queues).lag == verdict.age(queues[1]) == 400.0


def test_a_worker_is_alive_while_its_heartbeats_come_at_the_interval_that_it_reports() -> None:
    stats = {
        "at": "2030-01-01T12:01:00+00:00",
        "workers": [
            {"worker": "fresh", "info": None, "last_beat_at": "2030-01-01T12:00:46.5+00:00"},
            {"worker": "silent", "info": {"heartbeat": "odd"}, "last_beat_at": "2030-01-01T12:00:44+00:00"},
            {"worker": "slow", "info": {"heartbeat": 30}, "last_beat_at": "2030-01-01T12:00:26+00:00"},
            {"worker": "claims a day", "info": {"heartbeat": 86400}, "last_beat_at": "2030-01-01T11:59:54+00:00"},
            {"worker": "never", "info": {}, "last_beat_at": None},
        ],
    }
    assert [each["worker"] for each in verdict.living(stats)] == ["fresh", "slow"]


def test_a_queue_that_caught_up_since_its_cause_was_read_is_not_late() -> None:
    queues = [numbers("mail", 2.0), numbers("sms", 70.0)]
    late = verdict.still_late([cause("mail", 40.0), cause("sms", 31.0)], queues)
    reached = verdict.reach(late, (), queues)
    assert (reached.queue, list(reached.others)) == ("sms", [])
    assert verdict.reach(verdict.still_late([cause("mail", 40.0)], queues), (), queues).level == "ok"


def test_what_only_the_cause_tells_of_stays_late() -> None:
    # A queue without numbers yet, and jobs of a task that no worker knows.
    late = [cause("new", 40.0), cause("mail", 0.0, stuck_for=320.0)]
    assert verdict.still_late(late, [numbers("mail", 0.0)]) == late
