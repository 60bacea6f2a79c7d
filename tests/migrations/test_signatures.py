"""The public functions of an older release are there, and their calls mean what they meant: by position and by name."""

from __future__ import annotations

import psycopg
import pytest

from tests.databases import Cloner
from tests.migrations.releases import install

# Name, the arguments that go in with their types, how many of them have defaults, and what comes out.
_FUNCTIONS = """
select
    p.proname::text,
    (
        select coalesce(array_agg(array[p.proargnames[a.n], a.type::regtype::text] order by a.n), '{}')
        from unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) with ordinality a (type, n)
        where coalesce(p.proargmodes[a.n], 'i') in ('i', 'b', 'v')
    ),
    p.pronargdefaults,
    p.prorettype::regtype::text,
    p.proretset,
    (
        select coalesce(array_agg(array[p.proargnames[a.n], a.type::regtype::text] order by a.n), '{}')
        from unnest(p.proallargtypes) with ordinality a (type, n)
        where p.proargmodes[a.n] in ('o', 'b', 't')
    )
from pg_proc p
where p.pronamespace = 'pgqueue'::regnamespace and p.proname !~ '^_'
order by 1
"""

Signature = tuple[list[list[str]], int, str, bool, list[list[str]]]


def functions(conn: psycopg.Connection) -> dict[str, Signature]:
    return {
        name: (given, defaults, kind, is_set, out)
        for name, given, defaults, kind, is_set, out in conn.execute(_FUNCTIONS)
    }


@pytest.fixture(scope="module")
def old(cloner: Cloner) -> dict[str, Signature]:
    database = cloner.empty()
    conn = database.connect()
    install(conn)
    found = functions(conn)
    cloner.drop(database)
    return found


def test_the_public_functions_of_the_last_release_take_the_arguments_that_they_took(
    conn: psycopg.Connection, old: dict[str, Signature]
) -> None:
    new = functions(conn)
    assert len(old) > 40
    assert sorted(set(old) - set(new)) == []
    changed = []
    for name, (given, defaults, *_) in old.items():
        now, defaults_now, *_ = new[name]
        # New arguments come last, with defaults; none that could be left out must be given.
        if now[: len(given)] != given or len(now) - defaults_now > len(given) - defaults:
            changed.append((name, given, now))
    assert changed == []


def test_the_public_functions_of_the_last_release_return_the_columns_that_they_returned(
    conn: psycopg.Connection, old: dict[str, Signature]
) -> None:
    new = functions(conn)
    changed = []
    for name, (_, _, kind, is_set, out) in old.items():
        _, _, kind_now, is_set_now, out_now = new[name]
        if out_now[: len(out)] != out or is_set_now != is_set or (kind_now != kind and not out):
            changed.append((name, kind, out, kind_now, out_now))
    assert changed == []


def test_a_call_of_the_last_release_by_position_finds_its_function(
    conn: psycopg.Connection, old: dict[str, Signature]
) -> None:
    for name, (given, defaults, *_) in old.items():
        for count in range(len(given) - defaults, len(given) + 1):
            arguments = ", ".join(f"null::{kind}" for _, kind in given[:count])
            # Plans the call, and does not run it.
            conn.execute(f"explain select * from pgqueue.{name}({arguments})".encode())
