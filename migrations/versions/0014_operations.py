"""Samples of the queues, what workers count, and the audit of operators."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0014"
down_revision = "0012"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "d861f12ca5096da7365b5573091940406ffd05ba32b3d374f9f36a97031cab6f"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql(
        """
        drop table pgqueue.samples, pgqueue.worker_reports, pgqueue.audit;
        drop type pgqueue.job_filter;
        """
    )
