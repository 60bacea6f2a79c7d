"""Naps need no disk."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "2632d03d4f2733985572cbad4fc724e33fd5cf8f21b282bb7221ab7511629ec6"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.sleepers set logged")
