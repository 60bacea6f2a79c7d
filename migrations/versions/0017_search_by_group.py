"""Search by group."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "592cc689fbe34acb0fe63ec69c23f71e3e2d59db12a8451a5275b8cd27c32d85"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter type pgqueue.job_filter drop attribute groups;")
