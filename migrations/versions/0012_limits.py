"""Limits and keys that hold no lock longer than needed."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "2c6e69b1d6540abf33dfa20c9104d700a4055c40baadc7f1672858078b935745"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql(
        """
        drop type pgqueue.bulk_row, pgqueue.job_options;
        alter table pgqueue.key_notes drop column job_id, drop column next_at;
        """
    )
