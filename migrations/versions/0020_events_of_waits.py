"""When a job began to wait for an event."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.event_waits drop since; drop index pgqueue.notes_members, pgqueue.jobs_key_suspended;")
    run_sql("alter table pgqueue.idle_workers drop handoff_channel, drop listener, drop lease;")
    run_sql("alter table pgqueue.heartbeats drop memory;")
    run_sql("alter table pgqueue.samples drop blocked_by_limit, drop blocked_by_parents;")
    run_sql("alter table pgqueue.tasks drop declared_docs, drop declared_owner;")
    run_sql("drop type pgqueue.ended_job; drop type pgqueue.end_report;")
