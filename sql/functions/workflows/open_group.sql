-- open_group: makes a group, to which jobs are added by their group_id, and which other jobs can depend on.
--
-- Inserts one row; locks the row of the group of which it becomes a member, if any.

create or replace function pgqueue.open_group(
    name text default null, group_id bigint default null, depends_on bigint[] default null, run_if text default null,
    retention interval default null, headers jsonb default null, tags text[] default null
)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_options pgqueue.job_options;
    v_job pgqueue.jobs;
begin
    perform pgqueue._check_name('name', open_group.name, 512) where open_group.name is not null;
    v_options.task := '@group';
    v_options.queue := '@groups';
    v_options.args := jsonb_strip_nulls(jsonb_build_object('name', open_group.name));
    v_options.group_id := open_group.group_id;
    v_options.depends_on := open_group.depends_on;
    v_options.run_if := open_group.run_if;
    v_options.retention := open_group.retention;
    v_options.headers := open_group.headers;
    v_options.tags := open_group.tags;
    v_job := pgqueue._checked_job(nextval('pgqueue.jobs_id_seq'), pgqueue._ready_at(null), v_options);
    v_job.state := 'blocked';
    v_job.blocked_on := '@open';
    perform pgqueue._insert_jobs(array[v_job]);
    perform pgqueue._add_dependencies(array[v_job.id], v_job.followers) where v_job.depends_on is not null;
    -- Shows the ends of members that there are groups: see _ever_depended.
    perform pgqueue._leave_notes('group', array[v_job.id]);
    return v_job.id;
end
$$;

comment on function pgqueue.open_group(text, bigint, bigint[], text, interval, jsonb, text[]) is
    'Open a group and return its id. A group is a job without a task. Enqueue its members with group_id, then call close_group(). It ends '
    'when it is closed and all its members have ended: succeeded, if all of them succeeded; else dead or cancelled. Its result counts them. '
    'Jobs that depend on it are its callbacks: depends_on => array[id], run_if => ''finished''. '
    'group_id: the group that this one joins. depends_on, run_if: as for any job; if they cannot be met, the group and '
    'its members are cancelled. select pgqueue.open_group(''import''); [producer]';
