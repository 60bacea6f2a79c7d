-- all_jobs by task alone. A btree costs every job 65 bytes of WAL, and a block range index nothing that can be measured:
-- VACUUM writes it, and an insert only asks it. Task names are spread over all blocks, so it keeps a Bloom filter of each
-- sixteen blocks, some 400 jobs. It serves rare tasks; those of a frequent one are found from the newest id on.
create index history_task on pgqueue.history using brin (task text_bloom_ops(n_distinct_per_range = 64))
    with (pages_per_range = 16);
