"""The reference cannot drift: its pages are those that the tool writes from the catalog and the program."""

from __future__ import annotations

import os
import re

import psycopg
import pytest

import pgqueue
from docs.tools import program, reference
from pgqueue import metrics
from pgqueue.cli.main import COMMANDS
from tests.docs.pages import read


@pytest.fixture
def written(conn: psycopg.Connection) -> dict[str, str]:
    """The pages as they should be; written to docs/reference/ where PGQUEUE_WRITE_DOCS is set."""
    found = dict(reference.pages(conn))
    if os.environ.get("PGQUEUE_WRITE_DOCS"):
        for name, text in found.items():
            (reference.REFERENCE / name).write_text(text)
    return found


def test_the_generated_pages_are_up_to_date(written: dict[str, str]) -> None:
    stale = [name for name, text in written.items() if read(f"docs/reference/{name}") != text]
    assert stale == [], "run: make reference"


def test_every_public_function_has_a_section(written: dict[str, str], conn: psycopg.Connection) -> None:
    rows = conn.execute(
        "select proname from pg_proc where pronamespace = 'pgqueue'::regnamespace and proname !~ '^_'"
    ).fetchall()
    sections = re.findall(
        r"^## (\w+)$", "".join(text for name, text in written.items() if name.startswith("functions")), re.MULTILINE
    )
    assert sorted(sections) == sorted(name for (name,) in rows)


def test_each_argument_of_enqueue_has_a_sentence_in_every_function_that_takes_it(written: dict[str, str]) -> None:
    sections = dict(
        re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", written["functions-produce.md"], re.MULTILINE | re.DOTALL)
    )
    for name, number in {"enqueue": 27, "enqueue_outcome": 27, "enqueue_many": 28}.items():
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \| ", sections[name], re.MULTILINE)
        assert len(rows) >= number
        assert [argument for argument, sentence in rows if not sentence.endswith(".")] == []


def test_the_index_of_functions_says_what_each_is_for(written: dict[str, str]) -> None:
    pages = [text for name, text in written.items() if name.startswith("functions")]
    rows = [row for text in pages for row in re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \| (.*) \|$", text, re.MULTILINE)]
    assert len(rows) > 70
    assert [name for name, purpose in rows if len(purpose) < 10 or not purpose.endswith(".")] == []


def test_every_function_says_what_it_is_for_before_its_arguments(written: dict[str, str]) -> None:
    text = "\n".join(each for name, each in written.items() if name.startswith("functions"))
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^##? |\Z)", text, re.MULTILINE | re.DOTALL))
    assert len(sections) > 70
    assert [name for name, section in sections.items() if not re.match(r"\n\w[^|]{20,}", section)] == []
    # Nor what stands for no value, and what is returned.
    assert [name for name, section in sections.items() if re.search(r"repeat\(|-922337|`(IN)?OUT`", section)] == []
    assert "| `job_id` | bigint | required |" in sections["explain"]
    assert "Returns: record (job_id bigint, state text, reason text" in sections["explain"]


def test_every_table_view_and_column_has_a_row(written: dict[str, str], conn: psycopg.Connection) -> None:
    rows = conn.execute(
        """
        select c.relname, a.attname
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'pgqueue'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
            and c.relname <> 'alembic_version'
        """
    ).fetchall()
    assert len(rows) > 200
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", written["tables.md"], re.MULTILINE | re.DOTALL))
    assert [row for row in rows if f"| `{row[1]}` |" not in sections[row[0]]] == []


def test_every_command_and_option_has_a_row(written: dict[str, str]) -> None:
    text = written["command-line.md"]
    assert [name for name in COMMANDS if f"## pgqueue {name}\n" not in text] == []
    source = "\n".join(path.read_text() for path in (program.ROOT / "pgqueue" / "cli").glob("*.py"))
    declared = set(re.findall(r'"(--[a-z][a-z-]+)', source)) - {"--help", "--version"}
    assert len(declared) > 20
    assert sorted(each for each in declared if f"`{each}`" not in text) == NO_OPTIONS


# Options of another program, which the command line names.
NO_OPTIONS = ["--dbname", "--set"]


def test_every_field_variable_and_setting_has_a_row(written: dict[str, str]) -> None:
    text = written["settings.md"]
    named = [*program.WorkerConfig.__dataclass_fields__, *(f"pgqueue.{name}" for name in ("actor", "notify", "via"))]
    assert [name for name in named if f"| `{name}` |" not in text] == []
    assert {f"PGQUEUE_{name}" for name in ("DSN", "LISTEN_DSN", "WEB_USER")} <= set(re.findall(r"PGQUEUE_\w+", text))


def test_every_error_is_in_the_table(written: dict[str, str]) -> None:
    text = written["errors.md"]
    found = {name for name in vars(pgqueue.errors) if isinstance(getattr(pgqueue.errors, name), type)}
    assert [name for name in found if f"| `{name}` |" not in text] == []
    # What db.call turns into an error of ours.
    states = set(re.findall(r'case "(\w{5})"', (program.ROOT / "pgqueue/db/call.py").read_text()))
    assert {"22023", "55P03", "23505", "25001", "42501", "0A000"} <= set(
        re.findall(r"^\| (\w{5}) \|", text, re.MULTILINE)
    )
    assert states >= {"55P03", "23505"}


def test_every_metric_has_a_row(written: dict[str, str], conn: psycopg.Connection) -> None:
    text = written["metrics.md"]
    rows = conn.execute("select distinct name from pgqueue.metrics()").fetchall()
    named = {name for (name,) in rows} | set(metrics.OF_DATABASE)
    named |= {
        sample.name for family in program.worker_families() for sample in family.samples if family.type != "histogram"
    }
    assert [name for name in sorted(named) if f"`{name}`" not in text] == []


def test_the_metrics_of_a_database_have_the_labels_that_the_page_lists(conn: psycopg.Connection) -> None:
    conn.execute(
        """
        select pgqueue.hello('w', array['mail'], '{"concurrency": 4}');
        select pgqueue.beat('w', memory => 1);
        select pgqueue.declare_task('send');
        select pgqueue.schedule('nightly', '0 3 * * *', 'send');
        select pgqueue.set_limit('task', 'send', max_executing => 1);
        select pgqueue.pause('task', 'other');
        select pgqueue.enqueue('send', queue => 'mail', max_attempts => 1, limit_key => 'acme');
        select pgqueue.fail(r.id, r.reservation, '{"class": "KeyError", "message": "no"}') from pgqueue.reserve('w') r;
        select pgqueue.enqueue('send', queue => 'mail', limit_key => 'acme');
        """
    )
    rows = conn.execute("select name, labels from pgqueue.metrics()").fetchall()
    assert {name: ", ".join(sorted(labels)) for name, labels in rows} == {
        name: ", ".join(sorted(filter(None, program.labels_of(name).split(", ")))) for name, _ in rows
    }
    # Not of several databases, of the pages alone, of large queues, or of a breaker that is open.
    rare = {"database_up", "queue_wait_seconds", "queue_run_seconds", "queue_attempts_total", "breakers_open"}
    rare |= {"queue_counted_age_seconds", "queue_counted_to", "sample_age_seconds"}
    assert set(metrics.OF_DATABASE) - {name for name, _ in rows} <= {f"pgqueue_{name}" for name in rare}


def test_every_signal_has_a_row(written: dict[str, str]) -> None:
    rows = re.findall(r"^\| (SIG\w+) \|", written["signals.md"], re.MULTILINE)
    assert rows == program.handled_signals()
    assert {"SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGTTIN"} == set(rows)


def test_the_page_on_python_begins_each_module_of_several_names_with_a_table_of_them(written: dict[str, str]) -> None:
    for section in written["python.md"].split("\n## ")[1:]:
        named = re.findall(r"^\.\. auto(?:class|function|exception):: [\w.]*\.(\w+)$", section, re.MULTILINE)
        tables = re.findall(r"autosummary::\n   :nosignatures:\n\n((?:   \w+\n)+)", section)
        assert [table.split() for table in tables] == ([named] if len(named) > 2 else [])


def test_every_public_name_of_python_has_a_directive(written: dict[str, str]) -> None:
    text = written["python.md"]
    for name in pgqueue.__all__:
        assert re.search(rf"^\.\. auto\w+:: pgqueue[\w.]*\.{name}$", text, re.MULTILINE), name
