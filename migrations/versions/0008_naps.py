"""Naps need no disk."""

from pathlib import Path

from pgqueue.migrate import run_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "04c533745a8c856f402707711f4fcc7b69f5ccc5d2f583e05e7caf581d92cb2c"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.sleepers set logged")
