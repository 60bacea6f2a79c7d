"""Schedules: their definitions, and what became of each instant."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "499924ca9ad2398efef78a7e95452baba27c9f3f72e1155aa278a4e8b73d3423"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("drop table pgqueue.schedules, pgqueue.schedule_runs;")
