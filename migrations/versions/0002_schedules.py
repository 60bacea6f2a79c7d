"""Schedules: their definitions, and what became of each instant."""

from pathlib import Path

from pgqueue.migrate import run_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "628eb628bf0b9b02cbff58414e6a22304b0e073bbb56e899e7584fe302891e6d"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("drop table pgqueue.schedules, pgqueue.schedule_runs;")
