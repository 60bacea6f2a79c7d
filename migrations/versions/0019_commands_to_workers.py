"""Commands of an operator to a worker."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "302ec56670b468cf6843f5a77622451968427b99d7b22f1d23363dcf85a95cbb"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.workers drop column command, drop column commanded_at, drop column obeyed_at;")
