-- Marks: while one stands, some heads do not count, and claims read from the beginning.
--
-- Reason 'clock': the clock has stepped back, as a horizon from the future shows (see _head). Jobs that become ready now may
-- come in below the heads, and below heads that a claim is just moving. The mark is committed, and seen, with these jobs.
-- Reason 'key': a job with a key lives again under its old id, so the head of jobs with keys does not count.
--
-- maintain deletes marks and starts the heads that they concern again. Marks for the clock stand until all transactions have
-- ended that had begun when maintain first saw them: these may still write a head that they computed before, or commit
-- jobs without their own mark, because they saw this one. Marks for a key stand for ten seconds from when maintain first saw
-- them: by then each claim has ended that began before the mark was seen, and may have moved the head.

-- p_now: read after this transaction took its xid.
create or replace function pgqueue._check_clock(p_now timestamptz)
returns void
language plpgsql
set enable_seqscan = off
as $$
begin
    if (select h.at from pgqueue.horizons h order by h.n desc limit 1) > p_now then
        insert into pgqueue.head_marks (reason, at) values ('clock', pgqueue._clock());
    end if;
end
$$;

-- Only maintain calls it, which runs alone. A mark from a restored dump names an xid that is still to come.
create or replace function pgqueue._renew_heads(p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_oldest_xid xid8;
begin
    -- The transaction that wrote a mark may have been open for long.
    update pgqueue.head_marks m
    set seen_xid = pg_snapshot_xmax(pg_current_snapshot()), at = p_now
    where m.reason = 'key' and m.seen_xid is null;
    delete from pgqueue.head_marks m where m.reason = 'key' and m.at not between p_now - interval '10 s' and p_now;
    if found then
        delete from pgqueue.heads h where h.queue = '' and h.priority = 1;
    end if;

    if not exists (select from pgqueue.head_marks m where m.reason = 'clock') then
        return;
    end if;
    update pgqueue.head_marks m
    set seen_xid = pg_snapshot_xmax(pg_current_snapshot())
    where m.reason = 'clock' and (m.seen_xid is null or m.seen_xid > pg_snapshot_xmax(pg_current_snapshot()));
    v_oldest_xid := (pgqueue._running_xids(pg_current_snapshot()))[1];
    if not exists (select from pgqueue.head_marks m where m.reason = 'clock' and m.seen_xid > v_oldest_xid) then
        delete from pgqueue.head_marks m where m.reason = 'clock';
        delete from pgqueue.heads h where h.queue <> '' or h.priority <> 1;
    end if;
end
$$;

-- Ready_at of a job that is to run at p_run_at (null: now); never below the clock after the transaction took its xid.
create or replace function pgqueue._ready_at(p_run_at timestamptz)
returns timestamptz
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._ready_at_unchecked(null);
begin
    perform pgqueue._check_clock(v_now);
    return greatest(p_run_at, v_now);
end
$$;
