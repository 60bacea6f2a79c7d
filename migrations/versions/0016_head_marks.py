"""Marks that make heads not count, in a table of their own."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "3069f45e79a817376d471b0e634b68d1b5615450bf8ce444192beb86b766e6c5"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("delete from pgqueue.heads; drop table pgqueue.head_marks;")
