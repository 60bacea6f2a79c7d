"""Shards: databases with one queue each, whose ids show the shard, and the SQL of a PL/Proxy database before them.

An id of shard 2 is (2 << 44) and up: 2**44 jobs a shard, and 512 shards below 2**53, where JavaScript ends. Shard 0
has the ids of a queue alone, so that one becomes the first of several as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgqueue.config import describe_dsn, own_dsn
from pgqueue.errors import ConfigError

BITS = 44
MOST = 512

# The argument, or expression of arguments, that tells the shard of a call. The names are those of the catalog.
ROUTES = {
    "enqueue": "of_key(key, dedupe, depends_on, group_id)",
    "enqueue_many": "of_key(key, dedupe, depends_on, group_id)",
    "enqueue_outcome": "of_key(key, dedupe, depends_on, group_id)",
    "open_group": "of_key(null::text, null::text, depends_on, group_id)",
    **dict.fromkeys(("close_group", "group_progress", "members"), "of_id(group_id)"),
    **dict.fromkeys(
        ("cancel", "retry", "delete", "outcome", "explain", "parents", "steps", "release_from_parents"),
        "of_id(job_id)",
    ),
    **dict.fromkeys(
        (
            *("schedule", "unschedule", "pause_schedule", "resume_schedule", "run_schedule_now"),
            "configure_schedule",
        ),
        "of_key(name)",
    ),
    # All shards have the same.
    "version": "of_key(null::text)",
    "cron_next": "of_key(null::text)",
}

# Written by hand in proxy.sql: they ask several shards, and join the answers.
SPLIT = frozenset({"enqueue_batch", "next_attempts", "emit_event", "depth"})

_CATALOG = """
select p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
    pg_get_function_identity_arguments(p.oid), obj_description(p.oid, 'pg_proc')
from pg_proc p
where p.pronamespace = 'pgqueue'::regnamespace and p.proname = any(%s)
order by p.proname
"""
_SEQUENCE = "pg_get_serial_sequence('pgqueue.jobs', 'id')"


def set_shard(dsn: str, shard: int) -> None:
    """Let the jobs of this database get ids of a shard. ConfigError if it has jobs of another one."""
    if not 0 <= shard < MOST:
        raise ConfigError(f"--shard is {shard}", hint=f"give a number from 0 to {MOST - 1}")
    low, high = (shard << BITS) + 1, ((shard + 1) << BITS) - 1
    with psycopg.connect(own_dsn(dsn)) as conn:
        # Held until the end, because no id of the old range may be taken meanwhile.
        conn.execute("lock table pgqueue.jobs in share row exclusive mode")
        name, last, is_called = _sequence(conn)
        if low <= last <= high:
            return
        if is_called:
            raise ConfigError(
                f"{describe_dsn(dsn)} is shard {last >> BITS} already, and has given ids to jobs",
                hint="make a new database the new shard: the ids of jobs tell their shard forever",
            )
        # PostgreSQL shows the name of the sequence quoted.
        conn.execute(f"alter sequence {name} minvalue {low} maxvalue {high} start {low} restart".encode())


def shard_of(dsn: str) -> int:
    """Return the number of the shard that this database is."""
    with psycopg.connect(own_dsn(dsn)) as conn:
        return _sequence(conn)[1] >> BITS


def script(dsns: Sequence[str]) -> str:
    """Return the SQL of the proxy database of these shards, in their order; again whenever a shard is added.

    A user in a DSN is the one that all roles of the proxy use there. Raises ConfigError when a database is not the
    shard of its place.
    """
    for place, dsn in enumerate(dsns):
        if (found := shard_of(dsn)) != place:
            raise ConfigError(
                f"{describe_dsn(dsn)} is shard {found}, and stands at place {place}",
                hint="give the shards in order, each set with: pgqueue migrate --shard NUMBER",
            )
    with psycopg.connect(own_dsn(dsns[0])) as conn:
        rows = conn.execute(_CATALOG.encode(), [list(ROUTES)]).fetchall()
        missing = ROUTES.keys() - {row[0] for row in rows}
        if missing:
            raise ConfigError(
                f"{describe_dsn(dsns[0])} lacks {', '.join(sorted(missing))}", hint="run: pgqueue migrate"
            )
        functions = [_function(conn, *row) for row in rows]
        servers = _servers(conn, dsns)
    static = Path(__file__).with_suffix(".sql").read_text()
    return "\n".join(["begin;", static, servers, *functions, "commit;", ""])


def _sequence(conn: psycopg.Connection[tuple[object, ...]]) -> tuple[str, int, bool]:
    row = conn.execute(f"select {_SEQUENCE}").fetchone()
    if row is None or row[0] is None:
        raise ConfigError("the queue is not installed here", hint="run: pgqueue migrate")
    name = str(row[0])
    last = conn.execute(f"select last_value, is_called from {name}".encode()).fetchone()
    assert last is not None
    return name, int(str(last[0])), bool(last[1])


def _function(
    conn: psycopg.Connection[tuple[object, ...]], name: str, arguments: str, result: str, identity: str, comment: str
) -> str:
    returns = "" if " OUT " in f" {arguments}" else f"returns {result} "
    text = sql.Literal(comment).as_string(conn)
    return (
        f"drop function if exists pgqueue.{name}({identity});\n"
        f"create function pgqueue.{name}({arguments})\n{returns}language plproxy\n"
        f"as $$ cluster 'pgqueue'; run on pgqueue_proxy.{ROUTES[name]}; $$;\n"
        f"comment on function pgqueue.{name}({identity}) is {text};\n"
    )


def _servers(conn: psycopg.Connection[tuple[object, ...]], dsns: Sequence[str]) -> str:
    def literal(value: object) -> str:
        return sql.Literal(str(value)).as_string(conn)

    # PL/Proxy wants a power of two; those beyond the last shard are never named.
    places = 1
    while places < len(dsns):
        places *= 2
    parts = [conninfo_to_dict(dsn) for dsn in dsns]
    own = ("user", "password")
    bare = [make_conninfo("", **{key: str(value) for key, value in each.items() if key not in own}) for each in parts]
    options = ",\n    ".join(f"p{n} {literal(bare[n] if n < len(bare) else bare[0])}" for n in range(places))
    users = {(each.get("user"), each.get("password")) for each in parts}
    if len(users) > 1:
        raise ConfigError("the shards are given with different users", hint="the proxy uses one user on all shards")
    [(user, password)] = users
    mapping = [
        f"{key} {literal(value)}" for key, value in (("user", user), ("password", password)) if value is not None
    ]
    given = f" options ({', '.join(mapping)})" if mapping else ""
    return (
        "create or replace function pgqueue_proxy.shards() returns integer language sql immutable parallel safe\n"
        f"as $$ select {len(dsns)} $$;\n"
        "comment on function pgqueue_proxy.shards() is 'How many shards there are.';\n"
        "drop server if exists pgqueue cascade;\n"
        f"create server pgqueue foreign data wrapper plproxy options (\n    {options}\n);\n"
        f"create user mapping for public server pgqueue{given};\n"
        # Only the first time: buckets that were moved stay.
        "insert into pgqueue_proxy.buckets (bucket, shard)\n"
        f"select g, g % {len(dsns)} from generate_series(0, 1023) g\n"
        "on conflict do nothing;\n"
    )
