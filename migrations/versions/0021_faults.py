"""What the faults of the first attack needed in tables, types and indexes."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "a017f8f2ec103f78b6ead3c29ea1a713230dfd44d8ba5075e7467971ed9cb1da"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    # Each section of the upgrade has its line here.
    run_sql("comment on column pgqueue.jobs.retry is 'Options for retries of this job, over those of its task.';")
