"""all_jobs by task alone."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "91d27a44f5e737baa9352c1a95243f395bb3f73ef324e7f9a717873ed80ea5dd"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("drop index pgqueue.history_task;")
