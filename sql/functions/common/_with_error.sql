-- Errors as a job and the state of maintenance keep them.

-- Appends an error, and keeps the last ten, each with class, message and traceback cut to a bound.
create or replace function pgqueue._with_error(
    p_errors jsonb, p_error jsonb, p_attempt integer, p_worker text, p_at timestamptz, p_reserved_at timestamptz,
    p_retry_at timestamptz
)
returns jsonb
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_path_query_array(
        coalesce(p_errors, '[]')
        || jsonb_strip_nulls(jsonb_build_object(
            'class', left(p_error ->> 'class', 200),
            'message', left(
                case when jsonb_typeof(p_error) = 'object' then p_error ->> 'message' else p_error #>> '{}' end,
                4000
            ),
            'traceback', right(p_error ->> 'traceback', 20000),
            'attempt', p_attempt, 'worker', p_worker,
            'reserved_at', p_reserved_at, 'at', p_at, 'retry_at', p_retry_at,
            'policy_error', left(p_error ->> 'policy_error', 1000)
        )),
        '$[last - 9 to last]'
    )
$$;

-- The errors without the one that ended a cancelled job or a group, which no attempt raised. A handler may raise an exception
-- of such a name, too: then its job is dead, and no group.
create or replace function pgqueue._attempts_errors(p_errors jsonb, p_state pgqueue.job_state, p_task text)
returns jsonb
language sql immutable parallel safe
as $$
    select case
        when p_errors -> -1 ->> 'class' = any ('{ParentFailed,NotNeeded,Circle,GroupCancelled,MemberFailed}'::text[])
            and (p_state = 'cancelled' or (p_task = '@group' and p_state <> 'succeeded'))
            then nullif(p_errors - (-1), '[]')
        else p_errors
    end
$$;

-- Names the function that raised an error if it is not ours: an event trigger, a trigger on a table of the queue, a retry
-- function.
create or replace function pgqueue._error_text(p_sqlstate text, p_message text, p_context text)
returns text
language sql immutable parallel safe
as $$
    select p_sqlstate || ': ' || pg_catalog.left(p_message, 500)
        || coalesce(' (in ' || substring(p_context from e'function ((?!pgqueue\\.)[^\\s(]+)\\(') || ')', '')
$$;
