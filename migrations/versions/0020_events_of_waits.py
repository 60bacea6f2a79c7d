"""When a job began to wait for an event."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "381aedf5aa3c83e671d5357d871a313b1cae2e69ee4fac6a62afa3dee04411b1"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("alter table pgqueue.event_waits drop since; alter table pgqueue.heartbeats drop memory;")
    run_sql("alter table pgqueue.tasks drop declared_docs, drop declared_owner;")
