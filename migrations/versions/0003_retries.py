"""Retry policies."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "709ccfea9222ee28cff3f73dd3f968075574183c2162dda0d53f93add89d938d"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    # A policy that 0001 does not know becomes the default one.
    run_sql(
        """
        drop table pgqueue.retry_bookings;
        alter table pgqueue.queues drop column retry_budget;
        alter table pgqueue.history drop column retry;
        alter table pgqueue.jobs drop column retry;
        alter table pgqueue.tasks
            drop constraint tasks_retry_policy_check,
            drop constraint tasks_declared_retry_policy_check;
        update pgqueue.tasks set retry_policy = null where retry_policy not in ('fixed', 'exponential');
        update pgqueue.tasks
        set declared_retry_policy = null
        where declared_retry_policy not in ('fixed', 'exponential');
        alter table pgqueue.tasks
            drop column retry_cap,
            drop column retry_delays,
            drop column retry_queue,
            drop column retry_function,
            drop column declared_retry_cap,
            drop column declared_retry_delays,
            drop column declared_retry_queue,
            add constraint tasks_retry_policy_check check (retry_policy in ('fixed', 'exponential')),
            add constraint tasks_declared_retry_policy_check check (declared_retry_policy in ('fixed', 'exponential'));
        """
    )
