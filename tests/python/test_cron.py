"""Cron expressions as Python checks them: the same as the database accepts."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pgqueue._cron import check_cron
from pgqueue.errors import ConfigError

numbers = st.integers(0, 61).map(str) | st.sampled_from(["99999", "007", "-1", "٣", ""])
names = st.sampled_from(["jan", "DEC", "sun", "Mon", "sat", "foo", "sund", "*"])
values = numbers | names
items = st.one_of(
    values,
    st.tuples(values, values).map("-".join),
    st.tuples(values | st.tuples(values, values).map("-".join), numbers).map("/".join),
)
fields = st.lists(items, min_size=1, max_size=3).map(",".join)
expressions = st.lists(fields, min_size=4, max_size=7).map(" ".join) | st.sampled_from(
    ["@daily", " @Hourly ", "@reboot", "", " ", "0 0 * *", "0  0\t* *\n*", "* * * * * * *", "0 0 L * *", "0 0 ? * *"]
)


@pytest.mark.long
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(expression=expressions)
@example("0 0 * * sat-sun")
@example("5/61 * * * *")
@example("0 0 * * 7")
@example("0 0 * * 0/7")
@example("0 0\xa0* * *")
def test_python_refuses_what_the_database_refuses(conn: psycopg.Connection, expression: str) -> None:
    try:
        conn.execute("select pgqueue._cron_parse(%s)", [expression])
        is_accepted = True
    except psycopg.errors.InvalidParameterValue:
        is_accepted = False
    if is_accepted:
        check_cron(expression)
    else:
        with pytest.raises(ConfigError):
            check_cron(expression)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("0 0 * *", "a cron expression has five fields, or six with seconds first: '0 0 * *' has 4"),
        ("61 * * * *", "the minute of a cron expression must be 0 to 59: '61' is not"),
        ("0 0 1,x * *", "the day of month of a cron expression must be 1 to 31: 'x' is not"),
        ("0 0 * foo *", "the month of a cron expression must be 1 to 12 or jan to dec: 'foo' is not"),
        (
            "0 0 * * 5-3",
            "the day of week of a cron expression must be 0 to 7 or sun to sat (0 and 7 are Sunday): '5-3' ",
        ),
        ("@reboot", "a cron expression has five fields"),
    ],
)
def test_a_refusal_names_the_field_and_what_is_in_it(expression: str, message: str) -> None:
    with pytest.raises(ConfigError, match="give ") as refused:
        check_cron(expression)
    assert str(refused.value).startswith(message)
