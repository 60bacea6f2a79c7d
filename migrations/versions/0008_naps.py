"""Naps need no disk."""

from pathlib import Path

from pgqueue.migrate import run_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "92ef70a2c5f58e0d122a201c17bb953bc6c07bd481cfaea3a7696875af3951f4"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.sleepers set logged")
