"""Where each function of sql/ stands, so that a reader finds it by the tree alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pgqueue.schema import bundled

# The life of a job, and what happens beside it.
FOLDERS = {
    *("produce", "claim", "hold", "finish", "limits", "schedules"),
    *("worker", "operate", "maintain", "common", "workflows"),
}

# Folders about a thing and not about a stage of a job's life: a function about the thing is there, whichever folder
# calls it.
NOUNS = {"limits", "schedules", "common", "workflows"}

# What maintain runs as its steps stands with the tables that it is about; and these beside what they share a rule with.
WITH_THEIR_NOUN = {
    "_free_dedupe": "dedupe keys",
    "_retake_dedupe": "dedupe keys",
}


@dataclass(frozen=True)
class Function:
    name: str
    folder: str
    file: str
    text: str


def functions() -> list[Function]:
    found = []
    for file in sorted(bundled.directory("sql").glob("functions/**/*.sql")):
        for part in re.split(r"^(?=create or replace function )", file.read_text(), flags=re.MULTILINE)[1:]:
            name = re.match(r"create or replace function pgqueue\.(\w+)", part)
            assert name is not None, file
            text = part[: part.index("\n$$;")]
            found.append(Function(name[1], file.parent.name, file.name, text))
    return found


def test_every_function_stands_in_a_folder_of_the_tree() -> None:
    sql = bundled.directory("sql")
    assert {file.parent.relative_to(sql / "functions").as_posix() for file in sql.glob("functions/**/*.sql")} == FOLDERS
    assert {each.folder for each in functions()} == FOLDERS


def test_a_file_is_named_after_the_function_that_it_opens_with() -> None:
    first: dict[tuple[str, str], str] = {}
    for each in functions():
        first.setdefault((each.folder, each.file), each.name)
    assert {file: name for (_, file), name in first.items() if file != f"{name}.sql"} == {}


def test_a_private_function_that_one_folder_uses_stands_in_that_folder() -> None:
    known = functions()
    [slices] = [each for each in known if each.name == "_run_slice"]
    elsewhere = "".join(file.read_text() for file in bundled.directory("sql").glob("views/*.sql"))
    misplaced = {}
    for each in known:
        call = re.compile(rf"pgqueue\.{each.name}\b")
        has_its_noun = each.folder in NOUNS or each.name in WITH_THEIR_NOUN or call.search(slices.text)
        if not each.name.startswith("_") or has_its_noun:
            continue
        users = {other.folder for other in known if other != each and call.search(other.text)}
        if len(users) == 1 and each.folder not in users and not call.search(elsewhere):
            misplaced[each.name] = f"{each.folder}, used by {users.pop()} alone"
    assert misplaced == {}


def test_no_function_is_longer_than_can_be_held_in_the_head() -> None:
    long = {each.name for each in functions() if each.text.count("\n") + 2 > 150}
    assert long == set()


def test_no_file_holds_more_than_one_screenful_after_another() -> None:
    sql = bundled.directory("sql")
    long = {file.name for file in sql.glob("**/*.sql") if file.read_text().count("\n") > 450}
    assert long == set()


def callers(name: str) -> list[str]:
    call = re.compile(rf"pgqueue\.{name}\(")
    return [
        each.name for each in functions() for _ in call.findall(re.sub(r"--.*|create or replace .*", "", each.text))
    ]


def test_a_job_becomes_executing_in_one_statement() -> None:
    # In the SET of an UPDATE, not in a condition.
    claims = re.compile(r"(?:set|,)\s+state = 'executing'")
    assert [each.name for each in functions() for _ in claims.findall(each.text)] == ["_take_jobs"]


def test_a_claim_finds_decides_and_takes_in_one_loop() -> None:
    assert callers("_find_due") == ["_find_due", "_find_turns", "reserve"]
    assert callers("_decide_starts") == callers("_take_keyed") == ["reserve"]
    assert callers("_take_jobs") == ["_take_batch", "_take_keyed", "_take_keyed", "_take_keyed", "reserve", "_hand_off"]


def test_the_page_that_introduces_the_schema_names_every_public_function() -> None:
    page = (bundled.directory("sql") / "README.md").read_text()
    public = {each.name for each in functions() if not each.name.startswith("_")}
    assert {name for name in public if f"`{name}`" not in page} == set()


def test_the_page_that_introduces_the_schema_names_every_table_and_view() -> None:
    page = (bundled.directory("sql") / "README.md").read_text()
    schema = (Path(__file__).parent / "schema.txt").read_text()
    names = set(re.findall(r"^(?:table|view) (\w+)", schema, flags=re.MULTILINE))
    # Alembic's own, and the partitions of history.
    ours = {name for name in names if name != "alembic_version" and not name.startswith("history_")}
    assert {name for name in ours if f"`{name}`" not in page} == set()
