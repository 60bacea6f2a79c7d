"""all_jobs by task alone."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "270b6d3fb79dd47dddf3db6c93abbad66b0254b52cceeacd096a6d8612877433"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("drop index pgqueue.history_task;")
