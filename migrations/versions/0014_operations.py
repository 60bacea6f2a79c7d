"""Samples of the queues, what workers count, and the audit of operators."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "0e44f4bd90b3271c546a3c37b4bda735c88a3dc42274bef2db8f54283b38b08d"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql(
        """
        drop table pgqueue.samples, pgqueue.worker_reports, pgqueue.audit;
        drop type pgqueue.job_filter;
        """
    )
