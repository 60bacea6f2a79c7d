"""Samples of the queues, what workers count, and the audit of operators."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0014"
down_revision = "0012"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "bdb848101440cb14c3f58ddd4898def82741084544a90f50f9811b9bec38cc1d"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql(
        """
        drop table pgqueue.samples, pgqueue.worker_reports, pgqueue.audit;
        drop type pgqueue.job_filter;
        """
    )
