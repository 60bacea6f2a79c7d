-- Rights, after everything is loaded: nothing for PUBLIC, and for each role what grant_access() wrote down.

revoke all on all tables in schema pgqueue from public;
revoke all on type pgqueue.job_state, pgqueue.failure, pgqueue.failed_attempt from public;
-- Not SELECT: psql would print a table.
do $$ begin perform pgqueue._apply_grants(); end $$;
