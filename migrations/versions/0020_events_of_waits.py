"""When a job began to wait for an event."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "83d43cfd1c9cea26aa35da4a6d3da3a43491b893ce91175da575b303d97df8d5"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.event_waits drop since;")
