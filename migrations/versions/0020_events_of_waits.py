"""When a job began to wait for an event."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "fa41d990da97de65fc741b389b7493d5c686b835ed5a766789f405dada23da5c"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.event_waits drop since; alter table pgqueue.heartbeats drop memory;")
