"""Who enqueued a job, and what its producer's code declares."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "e7dff342e03363390f12e86e4ada7ad809f5acc0d8a06c348420fc9ea11e2bda"


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
