"""Tables as text."""

from __future__ import annotations

from pgqueue.cli.tables import Table


def table(*rows: tuple[object, ...]) -> Table:
    made = Table(("id", "task", "error"), right=frozenset({"id"}), cut=frozenset({"task", "error"}))
    for row in rows:
        made.add(*row)
    return made


def test_columns_are_aligned_and_as_wide_as_their_widest_cell() -> None:
    assert table((1, "greet", None), (23, "send_email", "no")).lines() == [
        "id  task        error",
        " 1  greet",
        "23  send_email  no",
    ]


def test_a_table_is_cut_to_the_width_and_marks_what_it_cut() -> None:
    lines = table((1, "a_task_with_a_long_name", "x" * 200)).lines(40)
    assert max(map(len, lines)) == 40
    assert lines[1].endswith("x…")
    assert "a_task_with_" in lines[1]


def test_a_column_with_a_long_heading_does_not_keep_the_others_from_being_cut() -> None:
    made = Table(("a long heading", "task"), cut=frozenset({"a long heading", "task"}))
    made.add("x", "a_name_of_a_task")
    assert [len(line) for line in made.lines(24)] == [20, 24]


def test_columns_that_may_not_be_cut_keep_their_width() -> None:
    assert table((10**30, "t", "e")).lines(20)[1].startswith(str(10**30))


def test_wide_characters_count_twice_and_combining_ones_not_at_all() -> None:
    first, second = table((1, "任務", "|"), (1, "e\u0301", "|")).lines()[1:]
    assert first == " 1  任務  |"
    assert second == " 1  e\u0301     |"


def test_a_cell_is_one_line_with_nothing_that_a_terminal_would_act_on() -> None:
    assert table((1, "a\nb", "\x1b[2J")).lines()[1] == " 1  a b   \\x1b[2J"
