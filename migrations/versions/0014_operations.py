"""Samples of the queues, what workers count, and the audit of operators."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0014"
down_revision = "0012"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "d4918c790afc7b9b522e1f9e19bfd728b51314bf94833e37ec4af2e0bac41df7"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql(
        """
        drop table pgqueue.samples, pgqueue.worker_reports, pgqueue.audit;
        drop type pgqueue.job_filter;
        """
    )
