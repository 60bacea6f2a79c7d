"""Search by group."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "d9f5b5d20457fc5833ee8c1d8d8f6391378d1fdc484e936728835aa22d2f4da4"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter type pgqueue.job_filter drop attribute groups;")
