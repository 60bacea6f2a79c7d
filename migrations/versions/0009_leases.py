"""What extend promised for rows that it could not lock."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "2632d03d4f2733985572cbad4fc724e33fd5cf8f21b282bb7221ab7511629ec6"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql(
        """
        comment on column pgqueue.jobs.lease_prolonged is
            'Private: this reservation already got its one extra lease after a gap in housekeeping.';
        comment on column pgqueue.housekeeping.gap_at is
            'When the last gap of more than 5 s in housekeeping ended: a lease begun before gets one more length.';
        comment on column pgqueue.housekeeping.prolonged is 'Leases that got one more length after a gap, in all.';
        drop type pgqueue.failed_attempt;
        drop type pgqueue.failure;
        drop table pgqueue.lease_promises;
        """
    )
