"""The queue: the tables, types and indexes of the first release."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "0775e0328597a1dade2bfb79f847fa8489e4e78416ce0581c1ca49b09b1db34e"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql(
        """
        drop table
            pgqueue.settings, pgqueue.queues, pgqueue.tasks, pgqueue.limits, pgqueue.pauses, pgqueue.breakers,
            pgqueue.schedules, pgqueue.jobs, pgqueue.history,
            pgqueue.lanes, pgqueue.tenant_lanes, pgqueue.turns, pgqueue.shares,
            pgqueue.heads, pgqueue.head_marks, pgqueue.horizons,
            pgqueue.lease_promises, pgqueue.key_notes, pgqueue.dedupe_keys, pgqueue.limit_starts,
            pgqueue.limit_levels, pgqueue.breaker_ends, pgqueue.retries,
            pgqueue.limit_waits, pgqueue.retry_bookings, pgqueue.schedule_runs, pgqueue.dependencies,
            pgqueue.traces, pgqueue.steps, pgqueue.events, pgqueue.event_waits, pgqueue.notes, pgqueue.workers,
            pgqueue.heartbeats, pgqueue.worker_reports, pgqueue.idle_workers, pgqueue.maintenance_runs,
            pgqueue.maintenance_steps, pgqueue.samples, pgqueue.job_logs, pgqueue.grants,
            pgqueue.audit, pgqueue.releases;
        drop sequence pgqueue.step_under_way;
        drop type
            pgqueue.job_options, pgqueue.job_filter, pgqueue.found_job,
            pgqueue.sub_lane, pgqueue.lane_round, pgqueue.due_lane, pgqueue.candidate, pgqueue.rule,
            pgqueue.touched_limit, pgqueue.start, pgqueue.turn, pgqueue.tenant_turn, pgqueue.claimed_job, pgqueue.draw,
            pgqueue.failure, pgqueue.failed_attempt, pgqueue.ended_job, pgqueue.end_report;
        drop type pgqueue.job_state;
        """
    )
