"""Dependencies, groups, durable steps and events."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "b2934d99f7724eeee1740e0609a79109eb65b6182c04b9790d07e0977b7689cd"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    # What waits for other jobs, and what has steps done, cannot be told to the older release: it would be lost, or
    # begin before what it waits for, or do again what is done.
    run_sql(
        """
        lock table pgqueue.jobs in access exclusive mode;
        do $$
        declare
            v_ids text := (
                select string_agg(x.id::text, ', ')
                from (
                    select j.id from pgqueue.jobs j where j.blocked_on like '@%' or j.has_steps order by j.id limit 20
                ) x
            );
        begin
            if v_ids is not null then
                raise 'the older schema has no groups, dependencies and steps, and jobs would be lost'
                    using detail = format('the first of these jobs: %s', v_ids),
                    hint = 'let them end, or cancel or delete them, then go on';
            end if;
        end
        $$;
        """
    )
    run_sql(
        """
        alter type pgqueue.job_options drop attribute run_if, drop attribute group_id;
        alter table pgqueue.settings drop column retention_parents;
        drop table pgqueue.notes, pgqueue.event_waits, pgqueue.events, pgqueue.steps, pgqueue.dependencies;
        drop index pgqueue.jobs_key_held, pgqueue.jobs_key_children, pgqueue.jobs_group, pgqueue.history_group;
        create index jobs_key_held on pgqueue.jobs (queue, key, id)
            where key is not null and (state = 'blocked' or (state in ('waiting', 'failed') and reservation > 0));
        alter table pgqueue.jobs
            drop column depends_on, drop column run_if, drop column group_id, drop column has_steps;
        alter table pgqueue.history
            drop column depends_on, drop column run_if, drop column group_id, drop column steps;
        """
    )
