"""Heads of lanes: where each lane begins, whatever was claimed from it before."""

from pathlib import Path

from pgqueue.migrate import run_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "8c20c7c4ac53a0f337c269a295595cefe28c76c68592fb5a3f8e4cd54bb2621e"


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
