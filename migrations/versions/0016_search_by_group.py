"""Search by group."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "a104480a248321d590649c4ba9e14295e248fe8caf5f11d645ec4ac50b45d1c6"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter type pgqueue.job_filter drop attribute groups;")
