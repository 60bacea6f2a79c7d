"""Heads as a pair of time and id."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "2632d03d4f2733985572cbad4fc724e33fd5cf8f21b282bb7221ab7511629ec6"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("""
        drop type pgqueue.sub_lane;
        drop type pgqueue.verdict;
        drop type pgqueue.open_batch;
        delete from pgqueue.heads;
        alter table pgqueue.horizons drop column newest_id;
        drop index pgqueue.jobs_key_running;
        alter table pgqueue.heads
            drop column head_id,
            drop column floor_ids;
        drop index pgqueue.jobs_lease;
        create index jobs_lease on pgqueue.jobs (lease_expires_at, queue, task, limit_key) where state = 'executing';
    """)
