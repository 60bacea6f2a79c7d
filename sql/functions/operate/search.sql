-- search: the ids of jobs that a filter fits, newest first, for lists and for "all that match".
--
-- Bounded, whatever the filter and the backlog: see _search_by_id.

create or replace function pgqueue.search(
    filter jsonb default '{}', before bigint default null, max_jobs integer default 50, max_rows integer default 50000,
    out job_ids bigint[], out next_before bigint, out is_cut boolean
)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select array(select m.id from unnest(f.matches) m), f.next_id, f.is_cut
    from pgqueue._search_by_id(pgqueue._read_filter(filter, max_jobs, max_rows), false, before, max_jobs, max_rows) f
$$;

comment on function pgqueue.search(jsonb, bigint, integer, integer) is
    'The ids of jobs that fit a filter, newest first. select job_ids, next_before from pgqueue.search(''{"queues": ["mail"], "states": ["dead"]}''); '
    'queues, tasks, keys, tags, workers, classes, lines, fingerprints (of the last error: its class, its first line, that line as dead_groups() masks it), errors (in class or message): tenants (limit_key), enqueued_by: lists of texts, * at the end for any, \* for itself, none empty; no field null; '
    'states; ids; retries (n of retry_fates()); groups (ids, at most 20); id_from, id_to; priority_from, priority_to, attempts_from, attempts_to; created_from, created_to, run_from, run_to, finished_from, finished_to (from: inclusive, to: not); age_from, age_to, since it was enqueued; '
    'args: a list of objects that the args contain. It reads at most max_rows rows of jobs and of history. next_before: call again with before => next_before; null: there is no more. '
    'is_cut: it stopped for max_rows, not for max_jobs. [reader]';

-- The filter of search(), with patterns of LIKE in place of names; refuses unknown fields, and bounds that are out of range.
create or replace function pgqueue._read_filter(p_filter jsonb, p_max_jobs integer, p_max_rows integer)
returns pgqueue.job_filter
language plpgsql stable
as $$
declare
    v_filter pgqueue.job_filter := jsonb_populate_record(null::pgqueue.job_filter, '{}');
    v_field text;
    v_patterns jsonb := '{}'::jsonb;
begin
    perform pgqueue._refuse(
        'filter must be an object', format('It is %s.', coalesce(jsonb_typeof(p_filter), 'null')), 'Give filter as {"queues": ["mail"]}.'
    )
    where jsonb_typeof(p_filter) is distinct from 'object';
    -- Null, as of array_agg() over no row, would fit every job.
    perform pgqueue._refuse(
        case k.value when 'null' then 'filter has a field that is null' else 'filter has an unknown field' end,
        format('It is %s.', quote_literal(left(k.name, 100))),
        'Give a field a value, or leave it out. Fields: ' || (select string_agg(f.name, ', ' order by f.name) from jsonb_object_keys(to_jsonb(v_filter)) f (name))
    )
    from jsonb_each(p_filter) k (name, value)
    where k.value = 'null' or not to_jsonb(v_filter) ? k.name;
    v_filter := jsonb_populate_record(null::pgqueue.job_filter, p_filter);
    -- A list may have been given as the text of an array.
    p_filter := to_jsonb(v_filter);
    perform s.name::pgqueue.job_state from unnest(v_filter.states) s (name);
    foreach v_field in array '{queues,tasks,keys,tags,workers,classes,lines,errors,fingerprints,tenants,enqueued_by}'::text[] loop
        continue when p_filter -> v_field = 'null';
        perform pgqueue._refuse(
            format('%s has a text that would fit every job', v_field), 'It is empty, or a star alone.',
            format('Give texts that are not empty, or leave %s out.', v_field)
        )
        where p_filter -> v_field ? '' or (p_filter -> v_field ? '*' and v_field in ('queues', 'tasks', 'lines', 'errors', 'fingerprints'));
        v_patterns := v_patterns || jsonb_build_object(v_field, (
            select coalesce(jsonb_agg(case v_field
                when 'errors' then '%' || l.pattern || '%'
                -- Tags joined to one text: a subquery would keep _fits_filter from being inlined.
                when 'tags' then
                    '%' || e'\x1f' || l.pattern || case when pgqueue._only_name(array[l.pattern]) is null then '' else e'\x1f%' end
                else l.pattern
            end), '[]')
            from jsonb_array_elements_text(p_filter -> v_field) e (text)
            -- A name, or the beginning of one and *, as a pattern of LIKE.
            cross join lateral (select regexp_replace(e.text, e'([\\\\%_])', e'\\\\\\1', 'g') as escaped) x
            cross join lateral (
                select case
                    when right(e.text, 2) = e'\\*' then left(x.escaped, -3) || '*'
                    when right(e.text, 1) = '*' then left(x.escaped, -1) || '%'
                    else x.escaped
                end as pattern
            ) l
        ));
    end loop;
    v_filter := jsonb_populate_record(v_filter, v_patterns);
    if v_filter.retries is not null then
        v_filter.ids := array(
            select i.id
            from pgqueue.retries r
            cross join lateral unnest(r.job_ids) i (id)
            where r.n = any (v_filter.retries) and (v_filter.ids is null or i.id = any (v_filter.ids))
        );
    end if;
    v_filter.created_to := least(v_filter.created_to, pgqueue._clock() - v_filter.age_from);
    v_filter.created_from := greatest(v_filter.created_from, pgqueue._clock() - v_filter.age_to);
    perform pgqueue._refuse('args has nothing to contain', 'It would fit every job.', 'Give args as [{"user": 17}], or leave it out.')
    where v_filter.args = '{}' or '{}' = any (v_filter.args);
    perform pgqueue._check_range('max_jobs', p_max_jobs, 1, 10000, 'Continue where the last call stopped.');
    perform pgqueue._check_range('max_rows', p_max_rows, 1, 1000000, 'Continue where the last call stopped.');
    perform pgqueue._refuse('groups must be at most 20', format('It has %s.', cardinality(v_filter.groups)), 'Search for them in several calls.')
    where cardinality(v_filter.groups) > 20;
    return v_filter;
exception
    when invalid_parameter_value then
        raise;
    when data_exception or invalid_text_representation or numeric_value_out_of_range or datetime_field_overflow then
        perform pgqueue._refuse('filter has a value of a wrong kind', sqlerrm, 'Compare it with the comment on pgqueue.search().');
end
$$;

-- A pattern without a wildcard.
create or replace function pgqueue._only_name(p_patterns text[])
returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when cardinality(p_patterns) = 1 and p_patterns[1] !~ e'(^|[^\\\\])(\\\\\\\\)*%$'
            then regexp_replace(p_patterns[1], e'\\\\(.)', e'\\1', 'g')
    end
$$;

-- Inlined: no SET, no subquery, and stable, for the text of a state is. Where the planner knows the filter, only the fields
-- that are given are looked at.
create or replace function pgqueue._fits_filter(
    p_filter pgqueue.job_filter, p_state pgqueue.job_state, p_queue text, p_task text, p_key text, p_tenant text,
    p_enqueued_by text, p_tags text[], p_worker text,
    p_errors jsonb, p_priority smallint, p_attempts integer, p_created_at timestamptz, p_run_at timestamptz,
    p_finished_at timestamptz, p_args jsonb
)
returns boolean
language sql stable parallel safe
as $$
    select ((p_filter).states is null or p_state::text = any ((p_filter).states))
        and ((p_filter).queues is null or p_queue like any ((p_filter).queues))
        and ((p_filter).tasks is null or p_task like any ((p_filter).tasks))
        and ((p_filter).keys is null or p_key like any ((p_filter).keys))
        and ((p_filter).tenants is null or p_tenant like any ((p_filter).tenants))
        and ((p_filter).enqueued_by is null or p_enqueued_by like any ((p_filter).enqueued_by))
        and ((p_filter).tags is null or e'\x1f' || array_to_string(p_tags, e'\x1f') || e'\x1f' like any ((p_filter).tags))
        and ((p_filter).workers is null or p_worker like any ((p_filter).workers))
        and ((p_filter).priority_from is null or p_priority >= (p_filter).priority_from)
        and ((p_filter).priority_to is null or p_priority < (p_filter).priority_to)
        and ((p_filter).attempts_from is null or p_attempts >= (p_filter).attempts_from)
        and ((p_filter).attempts_to is null or p_attempts < (p_filter).attempts_to)
        and ((p_filter).created_from is null or p_created_at >= (p_filter).created_from)
        and ((p_filter).created_to is null or p_created_at < (p_filter).created_to)
        and ((p_filter).run_from is null or p_run_at >= (p_filter).run_from)
        and ((p_filter).run_to is null or p_run_at < (p_filter).run_to)
        and ((p_filter).finished_from is null or p_finished_at >= (p_filter).finished_from)
        and ((p_filter).finished_to is null or p_finished_at < (p_filter).finished_to)
        and ((p_filter).classes is null or p_errors -> -1 ->> 'class' like any ((p_filter).classes))
        and ((p_filter).lines is null or pgqueue._first_line(p_errors) like any ((p_filter).lines))
        and (
            (p_filter).fingerprints is null
            or pgqueue._fingerprint(pgqueue._first_line(p_errors)) like any ((p_filter).fingerprints)
        )
        and (
            (p_filter).errors is null
            or concat_ws(': ', p_errors -> -1 ->> 'class', p_errors -> -1 ->> 'message') collate pg_catalog."C" ilike any ((p_filter).errors)
        )
        and ((p_filter).args is null or p_args @> all ((p_filter).args))
$$;

-- Inlined, like _fits_filter; dead_groups() calls it too.
create or replace function pgqueue._first_line(p_errors jsonb)
returns text
language sql immutable parallel safe
as $$
    select left(split_part(coalesce(p_errors -> -1 ->> 'message', ''), e'\n', 1), 200)
$$;

-- The line of an error without what differs from job to job: quoted text, addresses, names of hosts, ids, hexadecimal and other numbers.
create or replace function pgqueue._fingerprint(p_line text)
returns text
language sql immutable parallel safe
as $$
    select regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(
        p_line,
        -- Not the apostrophe of a word.
        $x$"[^"]*"|`[^`]*`|(?<![[:alnum:]])'[^']*'(?![[:alnum:]])$x$, '<text>', 'g'),
        -- Both cases by classes: the flag i asks the collation of the database, and in a Turkish one i is not I.
        '[A-Za-z][A-Za-z0-9+.-]*://[^[:space:]<>]+', '<url>', 'g'),
        -- Three parts at least: two of them may be a file or a module.
        $x$\m([a-z0-9]+(-+[a-z0-9]+)*\.){2,}[a-z]{2,}(:[0-9]+)?\M$x$, '<host>', 'g'),
        $x$\m(0[Xx][0-9A-Fa-f]+|[0-9A-Fa-f]{8}-[0-9A-Fa-f-]{27}|(?=[0-9A-Fa-f]*[0-9])[0-9A-Fa-f]{8,}|[[:alpha:]_]+[-_][[:alnum:]_-]*[0-9][[:alnum:]_-]*)\M$x$, '<id>', 'g'),
        '[0-9]+([.,:][0-9]+)*', '<n>', 'g')
$$;
