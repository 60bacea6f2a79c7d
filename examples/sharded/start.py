"""Three databases with a queue each, and a fourth before them in which PL/Proxy forwards every call.

    python -m examples.sharded.start

Needs Debian's postgresql-15 and postgresql-15-plproxy; it starts its own server in ./.pgqueue-sharded. All four
databases are on that one server here: with `dsn_of` changed, each is on its own machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from pgqueue import embedded
from pgqueue.schema.migrate import migrate
from pgqueue.schema.proxy import script, set_shard

BINARIES = Path(os.environ.get("PGQUEUE_PLPROXY_BINARIES", "/usr/lib/postgresql/15/bin"))
SHARDS = 3


def missing() -> str:
    """Say what this machine lacks for it; empty when nothing."""
    if not (BINARIES / "postgres").exists() or not (BINARIES.parent / "lib" / "plproxy.so").exists():
        return "PL/Proxy is not installed: apt-get install postgresql-15 postgresql-15-plproxy"
    return ""


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """Run a server of Debian's in a directory; yields the DSN of its database `postgres`."""
    before = os.environ.get("PGQUEUE_EMBEDDED_BINARIES")
    os.environ["PGQUEUE_EMBEDDED_BINARIES"] = str(BINARIES)
    try:
        with embedded.running(directory, durable=False, options={"max_connections": "200"}) as dsn:
            yield dsn
    finally:
        os.environ.pop("PGQUEUE_EMBEDDED_BINARIES")
        if before is not None:
            os.environ["PGQUEUE_EMBEDDED_BINARIES"] = before


def make_shard(dsn: str, number: int) -> str:
    """Create the database of a shard, with its queue; returns its DSN."""
    shard = _create(dsn, f"shard{number}")
    migrate(shard)
    set_shard(shard, number)
    with psycopg.connect(shard, autocommit=True) as conn:
        conn.execute("create table paid (at serial, job_id bigint primary key, customer text, paid_order integer)")
    return shard


def make_proxy(dsn: str, shards: Sequence[str]) -> str:
    """Create the database before the shards; returns its DSN."""
    proxy = _create(dsn, "proxy")
    put_before(proxy, shards)
    return proxy


def put_before(proxy: str, shards: Sequence[str]) -> None:
    """Have the proxy database forward to these shards: at first, and when one was added."""
    with psycopg.connect(proxy, autocommit=True) as conn:
        conn.execute(script(shards).encode())


def _create(dsn: str, name: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"drop database if exists {name} with (force)".encode())
        conn.execute(f"create database {name}".encode())
    return make_conninfo(dsn, dbname=name)


def main() -> int:
    """Start it, enqueue through the proxy, and run one worker over all shards until they are empty."""
    if why := missing():
        sys.stderr.write(f"{why}\n")
        return 2
    with server(Path(".pgqueue-sharded")) as dsn:
        shards = [make_shard(dsn, number) for number in range(SHARDS)]
        proxy = make_proxy(dsn, shards)
        with psycopg.connect(proxy, autocommit=True) as conn:
            for order in range(60):
                conn.execute(
                    "select pgqueue.enqueue('pay', %s, key => %s)",
                    [f'{{"order": {order}}}', f"customer {order % 12}"],
                )
            conn.execute("select pgqueue.enqueue('remind') from generate_series(1, 30)")
        options = [word for shard in shards for word in ("--dsn", shard)]
        worker = [sys.executable, "-m", "pgqueue", "worker", "-r", "examples.sharded.app", "--until-empty", *options]
        code = subprocess.run(worker, check=False).returncode
        for number, shard in enumerate(shards):
            with psycopg.connect(shard) as conn:
                row = conn.execute(
                    "select count(*), count(distinct key), min(id) from pgqueue.history where state = 'succeeded'"
                ).fetchone()
                assert row is not None
                sys.stdout.write(f"shard {number}: {row[0]} jobs ended, {row[1]} customers, ids from {row[2]}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
