"""The header of a function says what is not PostgreSQL's default, and is not set by every caller already.

A function without SETs is also cheaper to call. What may be called first (by a client, a trigger, a view, a migration)
sets all that it depends on; what only other functions call inherits it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pgqueue.schema import bundled

FUNCTION = re.compile(r"^create or replace function pgqueue\.(\w+)(.*?)^as \$\$(.*?)^\$\$;\n", re.DOTALL | re.MULTILINE)
CALL = re.compile(r"\bpgqueue\.(_\w+)")
ROOT = Path(__file__).parents[2]
PATH = "set search_path = pg_catalog, pg_temp"
# What a line of a header says: several attributes stand on the line of the language, and several settings on one.
CLAUSE = re.compile(
    r"set \w+ = .+?(?= set |$)|language \w+|volatile|stable|immutable|security definer"
    r"|parallel (?:unsafe|restricted|safe)|rows \d+",
    re.MULTILINE,
)


class Function(NamedTuple):
    name: str
    header: list[str]
    body: str

    @property
    def sets(self) -> frozenset[str]:
        return frozenset(line for line in self.header if line.startswith("set "))

    @property
    def inherits(self) -> bool:
        """Whether what its callers set holds in it, and is enough."""
        return self.name.startswith("_") and "security definer" not in self.header


@cache
def functions() -> dict[str, Function]:
    found = {}
    for file in bundled.sql_files():
        for name, header, body in FUNCTION.findall(file.read_text()):
            clauses = "\n".join(line for line in header.splitlines() if line.startswith(("language ", "set ")))
            found[name] = Function(name, CLAUSE.findall(clauses), body)
    return found


@cache
def inherited() -> dict[str, frozenset[str]]:
    """For each function the SETs that are in force whoever calls it."""
    callers = defaultdict(set)
    for each in functions().values():
        for called in CALL.findall(each.body):
            callers[called].add(each.name)
    callers = {name: by - {name} for name, by in callers.items()}
    outside: set[str] = set()
    for folder, files in (("sql", "*.sql"), ("sql", "[!f]*/*.sql"), ("migrations", "**/*.sql"), ("pgqueue", "**/*.py")):
        for file in (ROOT / folder).glob(files):
            outside |= set(CALL.findall(file.read_text()))
    everything = frozenset[str]().union(*(each.sets for each in functions().values()))
    holds = {
        name: everything if each.inherits and callers.get(name) and name not in outside else frozenset()
        for name, each in functions().items()
    }
    while True:
        less = {
            name: frozenset.intersection(*(holds[by] | functions()[by].sets for by in callers[name])) if sets else sets
            for name, sets in holds.items()
        }
        if less == holds:
            return holds
        holds = less


def test_the_headers_of_all_functions_are_read() -> None:
    created = [
        name
        for file in bundled.directory("sql").glob("functions/*/*.sql")
        for name in re.findall(r"^create or replace function pgqueue\.(\w+)", file.read_text(), re.MULTILINE)
    ]
    assert sorted(functions()) == sorted(created)


def test_the_clauses_of_headers_are_told_apart() -> None:
    assert functions()["extend"].header == [
        *("language plpgsql", "security definer", "rows 100", PATH),
        *("set plan_cache_mode = force_generic_plan", "set enable_seqscan = off", "set jit = off"),
        *("set enable_hashjoin = off", "set enable_mergejoin = off"),
    ]


def test_no_header_says_what_postgresql_takes_anyway() -> None:
    said = {name for name, each in functions().items() if {"volatile", "parallel unsafe"} & set(each.header)}
    assert said == set()


def test_no_header_repeats_what_every_caller_has_set() -> None:
    repeated = {
        name: sorted(each.sets & inherited()[name])
        for name, each in functions().items()
        if "language plpgsql" in each.header and each.inherits and each.sets & inherited()[name]
    }
    assert repeated == {}


def test_every_function_runs_with_the_pinned_path_unless_it_is_plain_sql() -> None:
    # Plain SQL without SETs is inlined; what it names is written with its schema.
    unpinned = {
        name
        for name, each in functions().items()
        if PATH not in each.sets | inherited()[name]
        and ("language plpgsql" in each.header or "security definer" in each.header or each.sets)
    }
    assert unpinned == set()
