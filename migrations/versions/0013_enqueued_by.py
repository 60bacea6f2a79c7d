"""Who enqueued a job, and what its producer's code declares."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "fac5f424bfac8c229fc26ba31da5f8876d32d907542e0caeff9cd3b8663a40c8"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql(
        """
        alter table pgqueue.history drop column enqueued_by;
        alter table pgqueue.jobs drop column enqueued_by;
        alter type pgqueue.job_options drop attribute declared;
        """
    )
