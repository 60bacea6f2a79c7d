"""Keys, accumulating tasks, dedupe and limits."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "928d9358e0c964ff4e28ec0dc042048e0acf979fe74a5dbc4fc82adec2fa476f"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    # Parked jobs wait again, and the payloads of one call run one by one.
    run_sql(
        """
        update pgqueue.jobs
        set state = case when errors is null then 'waiting'::pgqueue.job_state else 'failed'::pgqueue.job_state end
        where state = 'blocked' or (state = 'executing' and leader <> id);
        drop table
            pgqueue.key_notes, pgqueue.limits, pgqueue.limit_starts, pgqueue.limit_waits, pgqueue.dedupe_keys;
        alter table pgqueue.housekeeping drop column unparked, drop column key_cursor;
        alter table pgqueue.settings drop column dedupe_wait;
        alter table pgqueue.tasks
            drop column accumulate,
            drop column batch_size,
            drop column declared_accumulate,
            drop column declared_batch_size;
        drop index
            pgqueue.jobs_key_executing, pgqueue.jobs_key_waiting, pgqueue.jobs_key_held, pgqueue.jobs_key_returned,
            pgqueue.jobs_lease;
        create index jobs_lease on pgqueue.jobs (lease_expires_at) where state = 'executing';
        alter table pgqueue.history
            drop column score, drop column limit_key, drop column dedupe, drop column merged_into;
        alter table pgqueue.jobs
            drop column leader,
            drop column followers,
            drop column score,
            drop column limit_key,
            drop column blocked_on,
            drop column dedupe;
        """
    )
