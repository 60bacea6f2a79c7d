"""The language of filters: what each word becomes, and the error for an unknown one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue._filters import exactly, parse, quoted
from pgqueue.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("queue:mail,sms", {"queues": ["mail", "sms"]}),
        ("task:send_* state:failed,dead", {"tasks": ["send_*"], "states": ["failed", "dead"]}),
        ("key:order:17", {"keys": ["order:17"]}),
        ('key:"a*",a*,"a "*,a\\*', {"keys": ["a\\*", "a*", "a *", "a\\*"]}),
        ('key:*,"*" queue:"*"', {"keys": ["*", "\\*"], "queues": ["\\*"]}),
        ('line:"no answer, at all"', {"lines": ["no answer, at all"]}),
        ('line:"say \\"no\\""', {"lines": ['say "no"']}),
        ("17", {"ids": [17]}),
        ("id:1,2", {"ids": [1, 2]}),
        ("retried:3,2", {"retries": [3, 2]}),
        ("id:1..500", {"id_from": 1, "id_to": 500}),
        ("id:5..", {"id_from": 5}),
        ("age:>1h", {"age_from": "1 hours"}),
        ("age:<2d", {"age_to": "2 days"}),
        ("priority:>5", {"priority_from": 6}),
        ("priority:<=5", {"priority_to": 6}),
        ("attempts:3", {"attempts_from": 3, "attempts_to": 4}),
        ("run:<tomorrow", {"run_to": "tomorrow"}),
        ('created:>"2026-12-24 18:00+01"', {"created_from": "2026-12-24 18:00+01"}),
        ("args.user.id:17", {"args": [{"user": {"id": 17}}]}),
        ("args.name:anna", {"args": [{"name": "anna"}]}),
        ('args.name:"17"', {"args": [{"name": "17"}]}),
        ("args.n:12345678901234567890", {"args": [{"n": 12345678901234567890}]}),
        ("class:KeyError error:Timeout worker:w1 tag:vip",
         {"classes": ["KeyError"], "errors": ["Timeout"], "workers": ["w1"], "tags": ["vip"]}),
    ],
)  # fmt: skip
def test_words_become_fields(text: str, expected: dict[str, Any]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "mail",
        "colour:red",
        "queue:",
        "state:odd",
        "id:x",
        "age:1h",
        "age:>1y",
        "priority:high",
        "run:tomorrow",
        'line:"x',
        "args.:1",
        'error:""',
        'line:""',
        'queue:mail,""',
        'key:""',
        'tag:"" state:dead',
        "error:*",
        "queue:*",
        "args." + ".".join("a" * 600) + ":1",
    ],
)
def test_an_unknown_filter_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse(text)
    assert refused.value.hint


@given(st.text(min_size=1).filter(lambda name: name.isprintable()))
def test_any_name_can_be_quoted_exactly(name: str) -> None:
    assert parse(f"key:{quoted(name)}") == {"keys": [exactly(name)]}


@given(st.text())
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    with suppress(InvalidArgument):
        assert isinstance(parse(text), dict)
