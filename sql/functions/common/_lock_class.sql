-- First key of this queue's advisory locks. Second key 1: maintain; 2: attaching partitions; 3: migrating, and grants; 4: moving
-- heads; from 2^30: retry budgets; negative: limits, breakers, and what a worker has of max_share. The next first key: jobs behind
-- which others are blocked.
create or replace function pgqueue._lock_class()
returns integer
language sql immutable parallel safe
as $$
    select 1885827941
$$;
