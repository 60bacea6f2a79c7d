-- Naps end with the session that announced them, so a crash may take them: their commits need not wait for the disk.
-- Only what enqueues, reserves or sleeps reads them, never a standby.
alter table pgqueue.sleepers set unlogged;
