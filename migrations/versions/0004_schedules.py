"""Schedules: their definitions, and what became of each instant."""

from pathlib import Path

from pgqueue.migrate import run_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "d8766cc9542f76e92504ac3f54cda5d3ffb04b349bc4de3c86a8562905851ff7"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("drop table pgqueue.schedules, pgqueue.schedule_runs;")
