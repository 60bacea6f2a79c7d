"""The pages are run: every block of code in README and docs/, in order, against a real database."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import pgqueue
from tests.databases import Database
from tests.docs.pages import NOT_RUN, ROOT, SHOWN, Runner, SetUp, blocks, commands, pages, prose, read

TASKS = next(block.text for block in blocks("README.md") if block.file == "tasks.py")

# The pages that take more for granted than an empty queue.
SET_UP = {
    "README.md": SetUp(sql="create table orders (id bigint, email text)"),
    "docs/index.md": SetUp(sql="create table orders (id bigint)"),
    "docs/why.md": SetUp(sql="create table orders (id bigint)"),
    "docs/operate/worker.md": SetUp(
        files={
            "package/tasks.py": TASKS,
            "package/__init__.py": "",
            "tasks.py": TASKS,
            "shop/tasks.py": TASKS,
            "shop/__init__.py": "",
            "shop/settings.py": "SECRET_KEY = 'x'",
        }
    ),
    "docs/operate/failover.md": SetUp(files={"tasks.py": TASKS}),
    "docs/operate/roles.md": SetUp(clean_up="drop owned by shop_web, shop_worker; drop role shop_web, shop_worker"),
    "docs/operate/monitoring.md": SetUp(sql="select pgqueue.configure_queue('mail', weight => 2)"),
    "docs/operate/operating.md": SetUp(
        sql="select pgqueue.enqueue_many('t', array_fill('{}'::jsonb, '{20}'));"
        "select pgqueue.configure_queue('mail', weight => 2);"
        "select pgqueue.declare_task('send_email')"
    ),
}


@pytest.fixture
def runner(
    database: Database, conn: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runner]:
    # Python blocks run in this process, and read it as a reader's program does.
    monkeypatch.setenv("PGQUEUE_DSN", database.dsn)
    monkeypatch.syspath_prepend(tmp_path)
    # Another page has its own tasks.py, and an example has its own shop.
    for name in ("tasks", "shop"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield Runner(database.dsn, conn, tmp_path)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


# A page has a dozen commands, each a process of its own: seconds on a free machine, minutes on a busy one.
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in pages() if blocks(page)])
def test_every_block_of_a_page_runs(page: str, runner: Runner, conn: psycopg.Connection) -> None:
    needed = SET_UP.get(page, SetUp())
    runner.set_up(needed)
    try:
        for block in blocks(page):
            runner.run(block)
    finally:
        if needed.clean_up:
            conn.execute(needed.clean_up.encode())


def test_python_blocks_of_the_readme_enqueue_in_the_callers_transaction(
    runner: Runner, conn: psycopg.Connection
) -> None:
    runner.set_up(SET_UP["README.md"])
    for block in blocks("README.md"):
        if block.language == "python":
            runner.run(block)
    assert conn.execute("select count(*) from orders").fetchone() == (1,)
    found = conn.execute("select task, queue, ready_at > now() from pgqueue.jobs order by id").fetchall()
    assert found == [
        ("greet", "default", False),
        ("greet", "later", True),
        ("send_receipt", "default", False),
        ("send_receipt", "default", False),
    ]


def test_the_readme_is_a_tour_of_at_most_250_lines_with_a_table_of_contents() -> None:
    lines = read("README.md").splitlines()
    assert len(lines) <= 250
    assert "## Contents" in lines


def test_the_first_screen_of_the_readme_has_the_two_commands_of_a_fresh_clone() -> None:
    lines = read("README.md").splitlines()[:30]
    assert [line.split("#")[0].strip() for line in lines if line.startswith("make ")] == ["make demo", "make test"]


def test_the_readme_shows_the_demo_first_to_a_reader_who_installs_the_package_in_an_environment() -> None:
    environment, *first = [command.split("#")[0].strip() for command in _commands_of("README.md")][:3]
    assert environment == "python3 -m venv .venv && . .venv/bin/activate"
    assert first == ["pip install './pgqueue[embedded]'", "pgqueue demo"]


def test_the_first_page_shows_installation_code_and_why_before_all_else() -> None:
    top, _, _ = read("docs/index.md").partition("\n## ")
    assert _commands_of("docs/index.md")[:2] == ["pip install 'pgqueue-sql[embedded]'", "pgqueue demo"]
    assert [found for found in re.findall(r"^```(\w*)$", top, re.MULTILINE) if found] == ["sh", "python"]
    links = set(re.findall(r"\]\(([^)\s]+)\)", top))
    assert links >= {
        "install.md",
        "tutorial/first-job.md",
        "why.md",
        "..",
        "../README.md",
        "../examples",
        "../SECURITY.md",
    }
    assert len(re.findall(r"^- \*\*", top, re.MULTILINE)) == 6


def _commands_of(page: str) -> list[str]:
    return [command for block in blocks(page) if block.language == "sh" for command in commands(block)]


def test_every_page_of_docs_is_linked_from_the_index_and_stands_in_its_contents_once() -> None:
    index = read("docs/index.md")
    found = [page.removeprefix("docs/") for page in pages() if page.startswith("docs/") and page != "docs/index.md"]
    assert set(re.findall(r"\]\(([\w/-]+\.md)\)", index)) >= set(found)
    trees = re.findall(r"^:::\{toctree\}\n(.*?)^:::$", index, re.MULTILINE | re.DOTALL)
    listed = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    assert sorted(listed) == sorted(page.removesuffix(".md") for page in found)


def test_the_comparison_gives_a_source_for_every_other_queue() -> None:
    page = read("docs/explanation/comparison.md")
    columns = {name for row in re.findall(r"^\| \|([^|].*)\|$", page, re.MULTILINE)[:2] for name in row.split("|")}
    others = {name.strip().removesuffix(" with Redis") for name in columns} - {"pgqueue"}
    sources = dict(re.findall(r"^- \*\*([\w-]+)\*\*: (.*?)(?=^- |^$)", page, re.MULTILINE | re.DOTALL))
    assert set(sources) == others
    assert [name for name, text in sources.items() if len(re.findall(r"\]\(https://", text)) < 3] == []


def test_the_sql_reference_names_every_public_function_and_view(conn: psycopg.Connection) -> None:
    rows = conn.execute(
        """
        select p.proname from pg_proc p where p.pronamespace = 'pgqueue'::regnamespace and p.proname !~ '^_'
        union
        select c.relname from pg_class c where c.relnamespace = 'pgqueue'::regnamespace and c.relkind = 'v'
        """
    ).fetchall()
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", read("docs/reference/sql.md")))))
    assert sorted({row[0] for row in rows} - named) == []


@pytest.mark.parametrize("page", pages())
def test_every_function_that_a_page_calls_exists(page: str, conn: psycopg.Connection) -> None:
    for name in sorted(set(re.findall(r"pgqueue\.(\w+)\(", read(page)))):
        row = conn.execute("select from pg_proc where proname = %s", [name]).fetchone()
        assert row is not None or hasattr(pgqueue, name), f"{page} calls pgqueue.{name}()"


@pytest.mark.timeout(600)
def test_the_drivers_of_the_page_on_enqueue_enqueue_a_job_each_and_its_load_by_copy_all_rows(
    runner: Runner, conn: psycopg.Connection
) -> None:
    for block in blocks("docs/how-to/enqueue.md"):
        runner.run(block)
    # The trigger enqueues one for each of the last four orders, too.
    found = conn.execute("select args from pgqueue.jobs where task = 'send_receipt' order by id").fetchall()
    assert sorted(row[0]["order_id"] for row in found) == [1, 2, 3, 3, 4, 4, 5, 5]
    loaded = conn.execute(
        "select count(*), count(distinct key) from pgqueue.jobs where task = 'resize' and key like 'album:%'"
    ).fetchone()
    assert loaded == (1000, 10)


@pytest.mark.timeout(600)
def test_the_shop_of_the_tutorial_pays_once_and_sends_a_receipt(runner: Runner, conn: psycopg.Connection) -> None:
    for block in blocks("docs/tutorial/shop.md"):
        runner.run(block)
    assert conn.execute("select count(*) from payments").fetchone() == (1,)
    found = conn.execute("select task from pgqueue.history where state = 'succeeded' order by id").fetchall()
    assert found == [("pay",), ("send_receipt",)]
    assert conn.execute("select timezone from pgqueue.effective_schedules").fetchone() == ("Europe/Berlin",)


@pytest.mark.timeout(600)
def test_the_first_job_of_the_tutorial_is_dead_after_two_attempts_and_comes_back(
    runner: Runner, conn: psycopg.Connection
) -> None:
    for block in blocks("docs/tutorial/first-job.md"):
        runner.run(block)
    found = conn.execute("select id, state::text, attempts from pgqueue.all_jobs order by id").fetchall()
    assert found == [(1, "succeeded", 1), (2, "waiting", 0)]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_readme_and_the_tutorials_can_be_typed_in_one_directory(runner: Runner, conn: psycopg.Connection) -> None:
    for page in ("README.md", "docs/tutorial/first-job.md", "docs/tutorial/shop.md"):
        runner.set_up(SET_UP.get(page, SetUp()))
        for block in blocks(page):
            runner.run(block)
    found = conn.execute(
        "select state::text, attempts from pgqueue.all_jobs where task = 'welcome' order by id"
    ).fetchall()
    assert found == [("succeeded", 1), ("waiting", 0)]
    assert conn.execute("select count(*) from payments").fetchone() == (1,)


@pytest.mark.parametrize("page", pages())
def test_every_block_has_a_language(page: str) -> None:
    assert {block.language for block in blocks(page)} <= {"sh", "sql", "python"} | SHOWN
    assert len(re.findall(r"^ *```", read(page), re.MULTILINE)) == 2 * len(blocks(page))


def test_every_reason_not_to_run_a_command_is_needed() -> None:
    shell = [
        command for page in pages() for block in blocks(page) if block.language == "sh" for command in commands(block)
    ]
    assert [prefix for prefix in NOT_RUN if not any(command.startswith(prefix) for command in shell)] == []


@pytest.mark.parametrize("page", pages())
def test_every_test_that_a_page_names_exists(page: str) -> None:
    for file, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", read(page)):
        assert (ROOT / file).exists(), f"{page} names {file}"
        assert f"def {name}" in (ROOT / file).read_text(), f"{page} names {file}::{name}"


@pytest.mark.parametrize("page", pages())
def test_every_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        found = ROOT / page if not path else (ROOT / page).parent / path
        assert found.exists(), f"{page} links {target}"
        if anchor:
            assert anchor in _anchors(found), f"{page} links {target}"


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
