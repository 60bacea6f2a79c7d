-- search() finds the members of groups.

alter type pgqueue.job_filter add attribute groups bigint[];
