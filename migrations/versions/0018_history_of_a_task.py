"""all_jobs by task alone."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "4949f41d124a1e87959763cd03ee7d516298ad4e7183aa9d9582d4e925d77906"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("drop index pgqueue.history_task;")
