"""What a worker tells of its jobs: timeouts, crashes, results, progress."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "f400299f187ae4273af2ca3196c22d7c68b21bbe263d1ba826a5481ef3e8b00c"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql(
        """
        alter table pgqueue.tasks
            drop column timeout,
            drop column max_crashes,
            drop column store_result,
            drop column declared_timeout,
            drop column declared_max_crashes,
            drop column declared_store_result;
        alter table pgqueue.history drop column timeout, drop column crashed_on, drop column progress;
        alter table pgqueue.jobs
            drop column timeout,
            drop column started,
            drop column crashed_on,
            drop column progress;
        """
    )
