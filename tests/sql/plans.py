"""How much of the database a call reads."""

from __future__ import annotations

import psycopg

from tests.calls import value


def blocks(conn: psycopg.Connection, call: str, plans_first: bool = True) -> int:
    """Return the blocks that a call reads, once its plans are made."""
    query = f"explain (analyze, buffers, format json) select * from {call}"
    if plans_first:
        value(conn, query)
    plan = value(conn, query)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
