"""Calls in sql/functions go down, from floor to floor, as imports do in Python.

A floor is whole folders, or single files where a folder holds what others build on. sql/README.md draws the staircase.
"""

from __future__ import annotations

import re
from functools import cache

from pgqueue.schema import bundled
from tests.catalog.test_layout import functions

# From the ground. A file stands where it is named, else where its folder does.
FLOORS = {
    "common": "common/*",
    "ready": """
        claim/_head claim/_check_clock claim/_propose_horizon claim/_key_positions claim/_move_heads
        claim/_register_lane claim/_lane_of worker/_wake maintain/_count_queues maintain/_sample
        maintain/_partitions
    """,
    "rules": """
        limits/* claim/_release_next claim/_block_behind produce/_check_options produce/_free_dedupe operate/_configure
    """,
    "graph": """
        workflows/_tidy_traces workflows/_store_step workflows/_leave_notes workflows/_join_group
    """,
    "ends": """
        finish/* hold/_put_back hold/_request_cancel maintain/_rescue
        workflows/_add_dependencies workflows/_end_parents workflows/_circle
    """,
    "returns": """
        operate/retry workflows/_look_at_groups workflows/_reopen_children workflows/_wake_waiters workflows/_read_notes
        workflows/_sweep_dependencies workflows/emit_event
    """,
    "claims": "claim/* hold/*",
    "enqueues": "produce/* schedules/* operate/update_job",
    "maintains": "maintain/*",
    "clients": "worker/* workflows/* operate/*",
}

# Functions that call each other in a circle, with what ends the recursion. The list may only shrink.
CIRCLES = {
    frozenset({"_finish", "_follow_ends", "_end_parents", "_settle_children"}): (
        "the members of a batch end with their leader, and children that are not to run with their parent; each call"
        " ends jobs that lived before it, and leaves the children of large fans to notes"
    ),
    frozenset({"_requeue", "_reopen_children", "_revive_children", "_revive_group"}): (
        "a job that comes back brings back the children that were cancelled because of it, and its group; each call"
        " takes ended jobs out of history, and leaves the rest to notes"
    ),
}

# Functions that call themselves.
RECURSIVE = {
    "_find_due": "lane by lane, where tenants take turns in one of them",
    "_run_due": "by halves, until the schedule that fails is alone",
}

_CALL = re.compile(r"\bpgqueue\.(\w+)\(")
_NO_CALL = re.compile(r"--.*|'(?:[^']|'')*'")


@cache
def calls() -> dict[str, set[str]]:
    """Which functions each one calls. What stands in comments, and in the text of messages and examples, is no call."""
    bodies = {each.name: _NO_CALL.sub("", each.text.split("as $$", 1)[1]) for each in functions()}
    return {name: {each for each in _CALL.findall(body) if each in bodies} for name, body in bodies.items()}


def floors() -> dict[str, int]:
    """The number of the floor of each function."""
    of = {place: n for n, places in enumerate(FLOORS.values()) for place in places.split()}
    file = {each.name: f"{each.folder}/{each.file.removesuffix('.sql')}" for each in functions()}
    return {each.name: of.get(file[each.name], of[f"{each.folder}/*"]) for each in functions()}


def circles() -> set[frozenset[str]]:
    """The sets of functions, two or more, of which each reaches each other one."""
    reached = {name: _reached_from(name) for name in calls()}
    together = (frozenset(other for other in seen if name in reached[other]) for name, seen in reached.items())
    return {each for each in together if len(each) > 1}


def _reached_from(name: str) -> set[str]:
    seen: set[str] = set()
    ahead = [name]
    while ahead:
        new = calls()[ahead.pop()] - seen
        seen |= new
        ahead += new
    return seen


def test_every_place_is_on_one_floor_and_has_files() -> None:
    places = [place for each in FLOORS.values() for place in each.split()]
    assert len(places) == len(set(places))
    below = bundled.directory("sql") / "functions"
    assert [place for place in places if not list(below.glob(f"{place}.sql"))] == []


def test_calls_go_down() -> None:
    of = floors()
    up = {(name, called) for name, each in calls().items() for called in each if of[name] < of[called]}
    assert up == set()


def test_functions_that_call_each_other_are_named_with_what_ends_it() -> None:
    assert circles() == set(CIRCLES)
    assert {name for name, each in calls().items() if name in each} == set(RECURSIVE)


def test_the_page_that_introduces_the_schema_names_each_circle() -> None:
    page = (bundled.directory("sql") / "README.md").read_text()
    assert {name for name in {*RECURSIVE, *frozenset[str]().union(*CIRCLES)} if f"`{name}`" not in page} == set()
