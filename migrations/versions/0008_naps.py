"""Naps need no disk."""

from pathlib import Path

from pgqueue.migrate import run_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "095735ecd976e9d6313d1b1d9e66847e8df5ea0f01240c06a22f770f45ea9204"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.sleepers set logged")
