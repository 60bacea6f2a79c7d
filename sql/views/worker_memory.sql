-- worker_memory: how much memory each worker had within the hour for which heartbeats are kept, a row for each minute.

create or replace view pgqueue.worker_memory as
select b.worker, date_trunc('minute', b.at) as at, max(b.memory) as memory
from pgqueue.heartbeats b
where b.memory is not null
group by b.worker, date_trunc('minute', b.at);

comment on view pgqueue.worker_memory is
    'The memory of each worker within an hour, by the minute. select * from pgqueue.worker_memory order by worker, at;';
comment on column pgqueue.worker_memory.worker is 'The worker.';
comment on column pgqueue.worker_memory.at is 'The minute.';
comment on column pgqueue.worker_memory.memory is 'The highest resident memory that its process reported in that minute, in bytes.';
