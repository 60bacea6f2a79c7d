"""Heads of lanes: where each lane begins, whatever was claimed from it before."""

from pathlib import Path

from pgqueue.migrate import run_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "a0ccfb43cdc0ee581e1ad2e8db80578e6359e68deaec7d7555fde66c19c5844f"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql(
        """
        alter table pgqueue.housekeeping drop column hidden, drop column hidden_at, drop column hidden_took;
        drop table pgqueue.heads;
        drop table pgqueue.horizons;
        """
    )
