"""all_jobs by task alone."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "fb0207d70905b50c7352312c4ebfe26eec2daa23a6bbbfd75548253be4ba73ae"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("drop index pgqueue.history_task;")
