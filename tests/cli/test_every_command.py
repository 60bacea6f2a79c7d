"""Whatever stands on the command line, the answer is a result or a refusal; never a traceback, never a broken queue.

What is given comes from the tree of commands itself, from the types of their arguments and options and from the words
of their help, so that a new command, or a new option, is covered as it stands.
"""

from __future__ import annotations

import inspect
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import psycopg
import pytest
import typer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pgqueue import cli
from pgqueue.schema.migrate import migrate
from tests.calls import call, enqueue, maintain, reserve_one, state
from tests.cli.commands import commands
from tests.cli.conftest import Outcome
from tests.databases import Cloner, Database

# In the order of their ids: one that executes, dead, failed, cancelled, succeeded, one that waits, two of a key, two
# that Python cannot read, one for later, and one whose name a terminal would obey.
SEED = """
delete from pgqueue.jobs;
delete from pgqueue.history;
delete from pgqueue.dedupe_keys;
delete from pgqueue.key_notes;
delete from pgqueue.limits;
delete from pgqueue.limit_starts;
delete from pgqueue.limit_waits;
delete from pgqueue.schedule_runs;
delete from pgqueue.schedules;
delete from pgqueue.queues;
delete from pgqueue.workers;
select setval(pg_get_serial_sequence('pgqueue.jobs', 'id'), 1, false);
select pgqueue.enqueue_many('t', array_fill('{"to": "a@b.c"}'::jsonb, '{5}'));
select pgqueue.reserve('w', 1);
select pgqueue.fail(r.id, r.reservation, '{"message": "[/no]"}', retry => false) from pgqueue.reserve('w') r;
select pgqueue.fail(r.id, r.reservation, '{"message": 1}', '1 h') from pgqueue.reserve('w') r;
select pgqueue.cancel(4);
select pgqueue.complete(r.id, r.reservation, '{"n": 1e400}') from pgqueue.reserve('w') r;
select pgqueue.enqueue('t', queue => 'mail', dedupe => 'd');
select pgqueue.enqueue_many('t', array_fill('{}'::jsonb, '{2}'), key => 'k');
select pgqueue.enqueue('t', '{"n": 1e5000}');
select pgqueue.enqueue('t', (repeat('{"a":', 3000) || '1' || repeat('}', 3000))::jsonb);
select pgqueue.enqueue('t', delay => '2 hours', tags => '{a}');
select pgqueue.enqueue(e'\\x1b[2J\\u009b2J\\b', e'{"a": "\\u009b2J"}', queue => e'\\x1b[2J');
select pgqueue.schedule('nightly', '0 3 * * *', 'report', timezone => 'Europe/Berlin');
select pgqueue.schedule('pulse', task => 'ping', every => '90 s');
select pgqueue.run_schedule_now('pulse');
select pgqueue.set_limit('task', 't', max_executing => 3);
select pgqueue.hello(e'\\x1b[2J', '{mail}', '[1]');
"""
# What there is in it, by the names of parameters.
SEEDED = {
    "queue": ["default", "mail"],
    "task": ["t", "report"],
    "key": ["k"],
    "dedupe": ["d"],
    "state": ["waiting", "failed", "dead", "cancelled"],
    "target": ["t", "mail", "k*"],
    "name": ["nightly", "pulse"],
    "role": ["pg_monitor"],
    "to": ["head", "base", "0001"],
    "start": ["base", "0001", "0021"],
    "per": ["1 min"],
}

# Text as an operating system hands it over: anything but NUL, and bytes that are no UTF-8.
anything = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)
hostile = anything | st.sampled_from(
    [
        *("", " ", "'", '"', "\\", "%s", "%", "$1", "{}", "{0}", "[/red]", ":boom:", "*", "null", "-1", "0x10"),
        *("1_000", "--help", "'; drop table pgqueue.jobs; --", "\x1b[2J", "\r\n", "\udcff", "é\udc80"),
        *("x" * 128, "ä" * 65, "x" * 5000, "😀" * 40, "mail,²", "mail," + "9" * 5000),
    ]
)
times = st.sampled_from(
    [
        *("1 s", "2 hours", "-1 us", "0", "1 month", "9999 years", "-99999 years", "170000000 years", "1e400 s"),
        *("2001-01-01", "2030-06-01 12:00+00", "yesterday", "10000-01-01", "4713-01-01 BC", "294277-01-01"),
        *("infinity", "-infinity"),
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=6,
)
documents = st.dictionaries(anything, json_values, max_size=3).map(json.dumps) | st.sampled_from(
    [
        *('{"to": "a@b.c"}', "[1]", "1", "null", '{"a": ', "{'a': 1}", '{"a": NaN}', '{"a": 1, "a": 2}'),
        *('{"a": "\\u0000"}', '{"a": "\\ud800"}', '{"a": 1e400}', f'{{"a": {"9" * 5000}}}'),
        *(f'{{"a": {"[" * depth}{"]" * depth}}}' for depth in (200, 2000, 100_000)),
    ]
)
good_documents = st.dictionaries(anything, st.none() | st.booleans() | st.integers(-9, 9) | anything, max_size=3)
numbers = st.integers(1, 14).map(str) | st.sampled_from(
    ["0", "-1", str(2**31), str(2**63 - 1), str(2**63), "9" * 5000, "1.5", "nan", "inf", "1e400", "٣", "", "many"]
)

tree = typer.main.get_command(cli.cli)
COMMANDS = dict(commands(tree))

# Commands that run until they are stopped, or for minutes, are given what they refuse: no module with tasks, a
# benchmark that there is not, a directory that cannot be made.
LEFT_OUT = {
    ("worker",): {"require"},
    ("dev",): {"require"},
    ("status",): {"again"},
    ("jobs", "list"): {"again"},
    # It ends with the job.
    ("jobs", "logs"): {"follow"},
    ("workers", "list"): {"again"},
}
FORCED = {
    ("run",): {"task": "no_module:task"},
    ("top",): {"once": "--once"},
    ("web",): {"prefix": "--prefix=no-path"},
    ("mcp",): {"dsn": "--dsn=no=option"},
    ("bench",): {"names": "nope"},
    ("demo",): {"directory": "--directory=/dev/null/receipts"},
    ("psql",): {"arguments": "--command=select 1"},
    ("server",): {"directory": "--directory=/dev/null/data"},
}

# Control characters, which a terminal would act on.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Line:
    """A command line, the environment, and the answer typed when it asks."""

    arguments: list[str]
    environment: dict[str, str]
    typed: str


def values(parameter: Any, type_: Any, sensible: bool) -> st.SearchStrategy[str]:
    """What to give a parameter: a value of its type, or what its help speaks of; else anything."""
    if parameter.name == "dsn":
        # None that is hostile: libpq would look for a host of that name.
        wrong = ["postgresql://127.0.0.1:1/x", "postgresql://[", "host", "no=option", "port=99999999"]
        return st.sampled_from([""] if sensible else wrong)
    if re.search(r"\b(int|float)\b", str(type_)):
        return st.integers(1, 14).map(str) if sensible else numbers
    if not sensible:
        return times | documents | hostile | numbers
    said = parameter.help or ""
    if "JSON" in said:
        return good_documents.map(json.dumps)
    return st.sampled_from(SEEDED.get(parameter.name) or re.findall(r"'([^']+)'", said) or re.findall(r"[\w:]+", said))


def variable(path: tuple[str, ...], name: str) -> str:
    return "_".join(("PGQUEUE", *path, name)).upper()


@st.composite
def lines(draw: st.DrawFn, path: tuple[str, ...]) -> Line:
    command = COMMANDS[path]
    types = get_type_hints(inspect.unwrap(command.callback))
    forced = FORCED.get(path, {})
    arguments, options, environment = [], [], {}
    # Else one value that is refused would hide what becomes of the others.
    all_sensible = draw(st.booleans())

    def value(of: Any) -> str:
        return draw(values(of, types.get(of.name), all_sensible or draw(st.booleans())))

    free = [each for each in command.params if each.name not in forced and each.name not in LEFT_OUT.get(path, ())]
    can = [each for each in free if each.param_type_name == "option"]
    for each in draw(st.lists(st.sampled_from(can), max_size=4, unique_by=id)):
        if each.name not in ("dsn", "help") and draw(st.integers(0, 5)) == 0:
            environment[variable(path, each.name)] = draw(st.sampled_from(["1", "0"])) if each.is_flag else value(each)
        elif each.is_flag:
            options.append(draw(st.sampled_from([*each.opts, *each.secondary_opts])))
        else:
            count = draw(st.integers(1, 2)) if each.multiple else 1
            options += [f"{each.opts[0]}={value(each)}" for _ in range(count)]
    for each in free:
        if each.param_type_name == "argument":
            count = draw(st.integers(0, 3)) if each.nargs == -1 else 1 if all_sensible else draw(st.integers(0, 2))
            arguments += [value(each) for _ in range(count)]
    words = [*path, *options, *forced.values(), *draw(st.sampled_from([["--"], []])), *arguments]
    return Line(words, environment, draw(st.sampled_from(["y\n", "n\n", ""])))


@pytest.fixture(scope="module")
def queue(cloner: Cloner) -> Iterator[tuple[Database, psycopg.Connection]]:
    database = cloner.migrated()
    # Nothing prepared: a migration changes what a statement returns.
    yield database, database.connect(prepare_threshold=None)
    cloner.drop(database)


def run(line: Line, dsn: str, directory: Path) -> Outcome:
    """Run the command line in this process, with streams as an interpreter makes them."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with pytest.MonkeyPatch.context() as patch:
        # Made anew each time, of what does not change.
        patch.setattr(typer.main, "get_command", lambda _: tree)
        patch.setattr(sys, "argv", ["pgqueue", *line.arguments])
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "stdin", io.StringIO(line.typed))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.chdir(directory)
        patch.setenv("PGQUEUE_DSN", dsn)
        for name, text in line.environment.items():
            patch.setenv(name, text)
        with pytest.raises(SystemExit) as end:
            cli.main()
        for stream in (out, err):
            stream.flush()
    assert isinstance(end.value.code, int)
    return Outcome(end.value.code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())


@pytest.mark.long
@pytest.mark.parametrize("path", COMMANDS, ids="-".join)
def test_any_command_line_has_an_answer_and_leaves_a_queue_that_works(
    path: tuple[str, ...], queue: tuple[Database, psycopg.Connection], tmp_path: Path
) -> None:
    database, conn = queue
    is_as_seeded = False

    @settings(
        # To migrate takes a second.
        max_examples=10 if path == ("migrate",) else 20,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(line=lines(path))
    def holds(line: Line) -> None:
        nonlocal is_as_seeded
        if not is_as_seeded:
            conn.execute(SEED.encode())
        done = run(line, database.dsn, tmp_path)
        # What was refused has changed nothing.
        is_as_seeded = done.code == 2
        answers(conn, line, path, done)
        if path == ("migrate",):
            migrate(database.dsn)
        works(conn)

    holds()


def answers(conn: psycopg.Connection, line: Line, path: tuple[str, ...], done: Outcome) -> None:
    assert done.code in (0, 1, 2, 130), done
    assert "Traceback" not in done.err
    if path == ("psql",):
        # It writes to the terminal itself, and has exit codes of its own.
        return
    if done.code == 2:
        # With a question, a space: see visible_prompt_func of click.
        assert done.out in ("", " ")
        assert done.err.split("[y/N]:")[-1].startswith(("pgqueue: ", "Usage: ")), done.err
    elif done.code == 130:
        assert "[y/N]" in done.err
    elif done.code == 1:
        assert (done.err + done.out).strip()
    is_json = "--json" in line.arguments or line.environment.get(variable(path, "as_json")) == "1"
    if done.code == 0 and is_json and not {"--help", "-h"} & {*line.arguments}:
        # Not by json.loads(): what a job holds may nest deeper than that goes.
        conn.execute("select %s::json", [done.out])
    elif not is_json:
        assert not OBEYED.search(done.out), done.out
    if "Usage: " not in done.err:
        assert not OBEYED.search(done.err), done.err


def works(conn: psycopg.Connection) -> None:
    """A job of a queue without pause and limit runs, and maintenance succeeds."""
    job_id = enqueue(conn, "probe", queue="probe")
    held = reserve_one(conn, queues=["probe"])
    assert held.id == job_id
    assert call(conn, "complete", held.id, held.reservation) is True
    assert state(conn, job_id) == "succeeded"
    assert maintain(conn).ran
    assert call(conn, "stats")["maintenance"]["failures"] == {}
