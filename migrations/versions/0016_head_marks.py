"""Marks that make heads not count, in a table of their own."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "5d61057e2e2c93809d0f60da538aaaca1d9286b26cef8fa2d3e842f521a2b20d"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("delete from pgqueue.heads; drop table pgqueue.head_marks;")
