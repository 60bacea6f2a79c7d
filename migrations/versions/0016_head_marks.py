"""Marks that make heads not count, in a table of their own."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "409821edd4ea00adaa4761ac7fab1770a6ca6369c49abef1e900e5fa0167f689"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("delete from pgqueue.heads; drop table pgqueue.head_marks;")
