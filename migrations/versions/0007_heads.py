"""Heads of lanes: where each lane begins, whatever was claimed from it before."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "d9f1f61f4e74578c34a8c04c6ec40b8f6b0bf39cba147d6f59080ad3d290dd00"


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
