"""The user's modules: a mistake in one is shown with its file and line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pgqueue.cli.modules import load
from pgqueue.errors import ConfigError
from tests.cli.conftest import Run
from tests.workers import write_module


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def refusal(name: str) -> tuple[str, list[str]]:
    with pytest.raises(ConfigError) as refused:
        load([name])
    return str(refused.value), "\n".join(getattr(refused.value, "__notes__", [])).splitlines()


def test_an_import_that_fails_shows_the_line_of_the_user_and_the_traceback_from_there(tmp_path: Path) -> None:
    write_module(tmp_path, "\n\nimport nowhere_to_be_found", "needy")
    message, traceback = refusal("needy")
    assert message == (
        "module 'needy' cannot be imported: needy.py:3: ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    )
    assert traceback == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/needy.py", line 3, in <module>',
        "    import nowhere_to_be_found",
        "ModuleNotFoundError: No module named 'nowhere_to_be_found'",
    ]


@pytest.mark.parametrize("name", ["./tasks.py", "tasks.py", "./tasks", "../tasks", "tasks/", "a-b", ".tasks", ""])
def test_a_path_is_no_module(tmp_path: Path, name: str) -> None:
    write_module(tmp_path, "from pgqueue import App\napp = App()", "tasks")
    message, notes = refusal(name)
    assert (
        message == f"there is no module {name!r}; give -r as it is written after import, from the directory you are in"
    )
    assert notes == []


def test_a_syntax_error_shows_its_file_and_line(tmp_path: Path) -> None:
    write_module(tmp_path, "x = 1\ndef f(:\n", "unread")
    message, traceback = refusal("unread")
    assert message.startswith("module 'unread' cannot be imported: unread.py:2: SyntaxError: ")
    assert f'  File "{tmp_path}/unread.py", line 2' in traceback


def test_a_refused_declaration_shows_the_line_that_declares_it(tmp_path: Path) -> None:
    text = """
        from pgqueue import App
        app = App()

        @app.task(retry_delay="5 minuts")
        def t(): ...
    """
    write_module(tmp_path, text, "misspelled")
    message, traceback = refusal("misspelled")
    assert message.startswith(
        "module 'misspelled' cannot be imported: misspelled.py:5: ConfigError: task t: retry_delay"
    )
    # Nothing of the package's own.
    assert [line for line in traceback if line.startswith("  File")] == [
        f'  File "{tmp_path}/misspelled.py", line 5, in <module>'
    ]


def test_a_wrong_cron_expression_is_refused_at_import_with_the_schedule_and_the_field(tmp_path: Path) -> None:
    text = """
        from pgqueue import App
        app = App()

        @app.schedule("0 25 * * *", name="nightly")
        @app.task
        def t(): ...
    """
    write_module(tmp_path, text, "late")
    message, _ = refusal("late")
    assert (
        "late.py:5: ConfigError: schedule nightly: the hour of a cron expression must be 0 to 23: '25' is not"
        in message
    )


def test_two_functions_of_one_name_are_both_named_with_the_line_of_the_second(tmp_path: Path) -> None:
    text = """
        from pgqueue import App
        app = App()
        @app.task
        def t(): ...
        @app.task(name="t")
        def again(): ...
    """
    write_module(tmp_path, text, "twice")
    message, _ = refusal("twice")
    assert "twice.py:6: DuplicateTask: two functions are declared as task 't': twice.t and twice.again" in message


def test_a_module_in_another_module_is_shown_where_it_fails(tmp_path: Path) -> None:
    write_module(tmp_path, "import inner", "outer")
    write_module(tmp_path, "1 / 0", "inner")
    message, traceback = refusal("outer")
    assert message == "module 'outer' cannot be imported: inner.py:1: ZeroDivisionError: division by zero"
    assert len([line for line in traceback if line.startswith("  File")]) == 2


def test_a_module_that_is_not_there_is_one_line() -> None:
    message, traceback = refusal("nowhere")
    assert message.startswith("there is no module 'nowhere'; give -r as")
    assert traceback == []


@pytest.mark.parametrize("command", ["worker", "tasks schema", "tasks types --lang typescript", "dev"])
def test_where_no_module_was_given_the_hint_names_the_command_that_was_typed(command: str, run: Run) -> None:
    done = run(*command.split())
    assert done.code == 2
    assert f"name it: pgqueue {command.partition(' --')[0]} -r package.module" in done.err
