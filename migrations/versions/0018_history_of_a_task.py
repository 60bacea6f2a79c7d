"""all_jobs by task alone."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "0d53177a27a2aa4d2dfb277d10f52c17bb8ee128f280bcc1bf49d85e4e4dea5b"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("drop index pgqueue.history_task;")
