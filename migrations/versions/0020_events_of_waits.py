"""When a job began to wait for an event."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "890c4a6baa61e398e323594b6e3600a3498706d3a28b81e76d4e281e64141a2a"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.event_waits drop since;")
