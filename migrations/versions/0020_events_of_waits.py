"""When a job began to wait for an event."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "4bd87558c7a943f49268e4a2b8f55fa2893e88bc2189ddbbd22fc2e2bb900960"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.event_waits drop since;")
