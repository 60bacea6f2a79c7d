"""The queue: tables, types and indexes of the first release."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "a48a87984e6317074459529119da5d6bb000493ab311f933a3c9a6f720a01c53"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql(
        """
        drop table
            pgqueue.settings, pgqueue.queues, pgqueue.tasks, pgqueue.jobs, pgqueue.lanes, pgqueue.history,
            pgqueue.workers, pgqueue.beats, pgqueue.sleepers, pgqueue.housekeeping, pgqueue.grants,
            pgqueue.releases;
        drop type pgqueue.job_state;
        """
    )
