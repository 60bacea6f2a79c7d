"""Search by group."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "99ae8a0c68fe34a8c77b8f9a59c9c0316f29b5e084984e0decfd110baa56f724"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter type pgqueue.job_filter drop attribute groups;")
