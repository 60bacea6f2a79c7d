"""What the faults of the first attack needed in tables, types and indexes."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "7d7573ba52226d356248e15528c6170464880e5275ec4118304a419f5843f908"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    # Each section of the upgrade has its line here.
    run_sql("comment on column pgqueue.jobs.retry is 'Options for retries of this job, over those of its task.';")
    run_sql(
        """
        alter table pgqueue.lanes replica identity default;
        alter table pgqueue.lease_promises replica identity default;
        alter table pgqueue.limit_starts replica identity default;
        do $$
        declare
            v_table regclass;
        begin
            for v_table in select t.relid from pg_partition_tree('pgqueue.history') t loop
                execute format('alter table %s replica identity default', v_table);
            end loop;
        end
        $$;
        """
    )
    run_sql("alter table pgqueue.schedules drop constraint schedules_timezone_check;")
    run_sql(
        """
        drop index pgqueue.history_unfinished_by_id;
        drop type pgqueue.found_job;
        create type pgqueue.bulk_row as (
            id bigint, queue text, task text, state pgqueue.job_state, created_at timestamptz, priority smallint,
            resumed boolean, ready_at timestamptz, key text, blocked_on text, cancel_requested_at timestamptz
        );
        comment on type pgqueue.bulk_row is 'Private: what a bulk call reads of a live job.';
        """
    )
    run_sql("alter table pgqueue.grants drop column role_oid;")
    run_sql(
        """
        drop table pgqueue.traces;
        drop index pgqueue.jobs_key_stepped;
        comment on column pgqueue.jobs.leader is
            'For a job executing in a batch of an accumulating task: the job that stands for all payloads of its key; '
            'on that one its own id.';
        alter table pgqueue.settings drop column retention_audit;
        comment on table pgqueue.audit is
            'What operators did, by the functions that they called; kept for 90 days. '
            'select * from pgqueue.audit order by n desc limit 20;';
        """
    )
    run_sql("alter table pgqueue.jobs drop offered;")
    run_sql(
        "comment on column pgqueue.maintenance_runs.gap_at is 'When the last gap of more than 5 s in maintenance ended:"
        " a lease that could not be extended in the gap gets a grace period.';"
    )
    run_sql("alter table pgqueue.workers drop database;")
    run_sql(
        """
        drop index pgqueue.jobs_failed;
        alter table pgqueue.samples drop column is_large, drop column counted_at;
        comment on column pgqueue.samples.counted_to is 'Where counting stopped: a number as high as this means at least that many. Null: the numbers are exact.';
        """  # noqa: E501
    )
    run_sql(
        "comment on column pgqueue.notes.kind is 'c: a new child, with its parents; w: a job that waits, with what is"
        " left of its waiting; p: the children of a job that ended; r: the children of a job that was retried;"
        " g: a group; m: the members of a group that is cancelled; b: those of one that came back; e: an event.';"
        """
        drop index pgqueue.jobs_limit_key, pgqueue.limits_prefix;
        drop type pgqueue.draw, pgqueue.turn, pgqueue.start, pgqueue.claimed_job;
        drop type pgqueue.touched_limit, pgqueue.candidate;
        create type pgqueue.verdict as (row_ctid tid, kind text, slot integer, ahead bigint, limit_name text);
        comment on type pgqueue.verdict is 'Private: what a claim does with a candidate: see _order.';
        create type pgqueue.open_batch as (task text, slot integer, capacity integer);
        comment on type pgqueue.open_batch is
            'Private: a batch of an accumulating task that a claim has begun, and how many more keys it may hold.';
        """
    )
