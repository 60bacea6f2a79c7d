-- progress: how far a handler has come, about once a second. No index contains it, so the row is rewritten within its page.
--
-- Locks the row FOR UPDATE SKIP LOCKED: if another session has locked it (a handler's own transaction) nothing is stored.

create or replace function pgqueue.progress(
    job_id bigint, reservation bigint, done double precision, total double precision default null,
    note text default null
)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
-- Else that of the client's session may round what is stored.
set extra_float_digits = 1
set jit = off
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
begin
    perform pgqueue._check_pairs(array[progress.job_id], array[progress.reservation]);
    perform pgqueue._refuse(
        'done and total must be finite, and done not null',
        format('They are %s and %s.', coalesce(progress.done::text, 'null'), coalesce(progress.total::text, 'null')),
        'Give done as a number, and total as one or null where it is not known.'
    )
    where progress.done is null or progress.done in ('NaN', 'Infinity', '-Infinity')
        or progress.total in ('NaN', 'Infinity', '-Infinity');

    with held as materialized (
        select j.ctid as row_ctid
        from pgqueue.jobs j
        where j.id = progress.job_id and j.reservation = progress.reservation and j.state = v_executing
        for update skip locked
    )
    update pgqueue.jobs j
    set progress = jsonb_strip_nulls(jsonb_build_object(
        'done', progress.done, 'total', progress.total, 'note', left(progress.note, 1000), 'at', pgqueue._clock()
    ))
    from held h
    where j.ctid = h.row_ctid;
    return found or exists (
        select from pgqueue.jobs j
        where j.id = progress.job_id and j.reservation = progress.reservation and j.state = v_executing
    );
end
$$;

comment on function pgqueue.progress(bigint, bigint, double precision, double precision, text) is
    'Record how far a job has come: done of total (null: not known), and a note of up to 1000 characters. all_jobs shows it. '
    'False when the reservation is no longer held; then nothing was changed. [worker]';
