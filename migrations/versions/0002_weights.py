"""Weights of queues."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = ""


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.queues drop column weight;")
