"""Maintenance that remembers how far each step came."""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables. `make digest` writes it; a test compares it.
SQL_DIGEST = "2632d03d4f2733985572cbad4fc724e33fd5cf8f21b282bb7221ab7511629ec6"


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql(
        """
        alter table pgqueue.heads rename column fallback_heads to floors;
        alter table pgqueue.heads rename column fallback_ids to floor_ids;
        alter table pgqueue.jobs rename column grace_given to lease_prolonged;
        alter table pgqueue.history rename column granularity to grain;
        alter sequence pgqueue.heartbeats_n_seq rename to beats_n_seq;
        alter index pgqueue.heartbeats_by_worker rename to beats_by_worker;
        alter index pgqueue.heartbeats_pkey rename to beats_pkey;
        alter table pgqueue.heartbeats rename to beats;
        alter index pgqueue.idle_workers_by_worker rename to sleepers_by_worker;
        alter index pgqueue.idle_workers_by_queue rename to sleepers_by_queue;
        alter table pgqueue.idle_workers rename to sleepers;
        alter sequence pgqueue.maintenance_runs_n_seq rename to housekeeping_n_seq;
        alter index pgqueue.maintenance_runs_pkey rename to housekeeping_pkey;
        alter table pgqueue.maintenance_runs rename to housekeeping;
        alter table pgqueue.housekeeping
            drop column expired,
            add column minute_at timestamptz,
            add column partitions_at timestamptz,
            add column drop_at timestamptz,
            add column drop_failures integer not null default 0,
            add column failures jsonb not null default '{}',
            add column key_cursor text[],
            add column hidden_at timestamptz,
            add column hidden_took interval;
        drop sequence pgqueue.step_under_way;
        drop table pgqueue.maintenance_steps;
        """
    )
