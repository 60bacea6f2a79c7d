"""Naps need no disk."""

from pathlib import Path

from pgqueue.migrate import run_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "a6cbb91459e3ac0fab25f5a45781135e74315df5c5c994f26636172a99908e8b"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.sleepers set logged")
