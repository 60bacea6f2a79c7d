-- Weights of queues, for workers that name none on their command line.

alter table pgqueue.queues
    add column weight integer check (weight between 1 and 1000000);
comment on column pgqueue.queues.weight is 'Share of this queue in claims of workers that give no weights, against 1 for queues without one.';
