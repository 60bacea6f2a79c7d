"""Heads of lanes: where each lane begins, whatever was claimed from it before."""

from pathlib import Path

from pgqueue.migrate import run_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "c06593016e6831825516e4f36189ad7c691f152844a1036226beea9bdbeb7679"


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
