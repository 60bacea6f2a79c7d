"""Heads of lanes: where each lane begins, whatever was claimed from it before."""

from pathlib import Path

from pgqueue.migrate import run_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "01c30b8f8bac653a0dde74bb6b79f3c8e6ec55050cee0218c7edb42eae6dddad"


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
