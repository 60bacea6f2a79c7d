"""pgqueue.cron_next: by example, and against cronsim, which mimics Debian's cron.

cronsim differs, and is not asked, where
- six fields are given: it runs them all on elapsed time, ours by the rule for five (so six are compared in UTC, and by
  definition in `test_by_the_wall_clock...`);
- a date can never come: it raises for some of these and searches for ever for others; ours says null;
- a range of one value has a step (`0-0/5`): it reads it as `0/5`;
- minute or hour begins with a star in Lord Howe: it steps by whole hours across a change of half an hour, and misses
  the beginning of an hour (that zone is held against the definition below);
- a step is larger than its field (`*/90`) or a list holds L, LW or #: ours refuses them;
- a range ends in sun (`sat-sun`) or a name stands in capitals and letters: it refuses the first, both take the second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import psycopg
import pytest
from cronsim import CronSim, CronSimError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.calls import value

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def upcoming(
    conn: psycopg.Connection, expression: str, after: datetime | str, zone: str = "UTC", n: int = 1
) -> list[str]:
    """The next n instants, in the zone's own time with its offset; fewer where it never comes again."""
    with conn.transaction():
        conn.execute("select set_config('TimeZone', %s, true)", [zone])
        rows = conn.execute(
            """
            with recursive r as (
                select 1 as n, pgqueue.cron_next(%(e)s, %(a)s::timestamptz, %(z)s) as at
                union all
                select n + 1, pgqueue.cron_next(%(e)s, at, %(z)s) from r where n < %(n)s and at is not null
            )
            select to_char(at, 'YYYY-MM-DD HH24:MI:SSTZH:TZM') from r where at is not null order by n
            """,
            {"e": expression, "a": after, "z": zone, "n": n},
        ).fetchall()
    return [row[0] for row in rows]


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("*/15 * * * *", "2026-01-01 00:07:30+00", "2026-01-01 00:15:00+00:00"),
        ("*/15 * * * *", "2026-01-01 00:15:00+00", "2026-01-01 00:30:00+00:00"),
        ("*/15 * * * *", "2026-01-01 00:14:59.999999+00", "2026-01-01 00:15:00+00:00"),
        ("5/20 * * * *", "2026-01-01 00:06+00", "2026-01-01 00:25:00+00:00"),
        ("0 9-17/4 * * mon-fri", "2026-01-02 13:00+00", "2026-01-02 17:00:00+00:00"),
        ("0 9-17/4 * JAN-DEC MON-FRI", "2026-01-02 13:00+00", "2026-01-02 17:00:00+00:00"),
        ("0 9-17/4 * * mon-fri", "2026-01-02 17:00+00", "2026-01-05 09:00:00+00:00"),
        ("0 0 1 jan,JUL *", "2026-01-01 00:00+00", "2026-07-01 00:00:00+00:00"),
        ("0 0 * * 7", "2026-01-01 00:00+00", "2026-01-04 00:00:00+00:00"),
        ("0 0 * * 0", "2026-01-01 00:00+00", "2026-01-04 00:00:00+00:00"),
        ("0 0 * * sat-sun", "2026-01-04 00:00+00", "2026-01-10 00:00:00+00:00"),
        ("59 23 31 12 *", "2026-12-31 23:59+00", "2027-12-31 23:59:00+00:00"),
        ("@hourly", "2026-01-01 00:00+00", "2026-01-01 01:00:00+00:00"),
        ("@daily", "2026-01-01 00:00+00", "2026-01-02 00:00:00+00:00"),
        (" @Midnight ", "2026-01-01 00:00+00", "2026-01-02 00:00:00+00:00"),
        ("@weekly", "2026-01-01 00:00+00", "2026-01-04 00:00:00+00:00"),
        ("@monthly", "2026-01-01 00:00+00", "2026-02-01 00:00:00+00:00"),
        ("@yearly", "2026-01-01 00:00+00", "2027-01-01 00:00:00+00:00"),
        ("@annually", "2026-06-01 00:00+00", "2027-01-01 00:00:00+00:00"),
        # Seconds first.
        ("*/20 * * * * *", "2026-01-01 00:00:41+00", "2026-01-01 00:01:00+00:00"),
        ("30 59 23 31 12 *", "2026-01-01 00:00+00", "2026-12-31 23:59:30+00:00"),
        # Leap days; 1900 and 2100 are no leap years, and 29 February on a Wednesday is 40 years away across 2100.
        ("0 0 29 2 *", "2026-01-01 00:00+00", "2028-02-29 00:00:00+00:00"),
        ("0 0 29 2 *", "2096-03-01 00:00+00", "2104-02-29 00:00:00+00:00"),
        ("0 0 29 2 */7", "2026-01-01 00:00+00", "2032-02-29 00:00:00+00:00"),
        ("0 0 */29 2 wed", "2072-02-29 00:00+00", "2073-02-01 00:00:00+00:00"),
        ("0 0 31 * *", "2026-02-01 00:00+00", "2026-03-31 00:00:00+00:00"),
        # Both days restricted: either; one that begins with a star: both.
        ("0 0 13 * fri", "2026-01-01 00:00+00", "2026-01-02 00:00:00+00:00"),
        ("0 0 13 * fri", "2026-01-09 00:00+00", "2026-01-13 00:00:00+00:00"),
        ("0 0 */2 * fri", "2026-01-01 00:00+00", "2026-01-09 00:00:00+00:00"),
        ("0 0 13 * */5", "2026-01-01 00:00+00", "2026-02-13 00:00:00+00:00"),
        # Both fit on the very next day, and not on the first one.
        ("* * 16 * */2", "2019-02-15 22:00+00", "2019-02-16 00:00:00+00:00"),
        ("30 * 16 * */2", "2019-02-15 22:00+00", "2019-02-16 00:30:00+00:00"),
    ],
)
def test_examples(conn: psycopg.Connection, expression: str, after: str, expected: str) -> None:
    assert upcoming(conn, expression, after) == [expected]


@pytest.mark.parametrize("never", ["0 0 31 2 *", "0 0 30 feb *", "0 0 31 4,6,9,11 *", "0 0 30 2 */2"])
def test_what_never_comes_is_null(conn: psycopg.Connection, never: str) -> None:
    assert upcoming(conn, never, "2026-01-01 00:00+00") == []
    assert upcoming(conn, never, "2026-01-01 00:00+00", BERLIN) == []


def test_every_day_that_comes_at_all_is_within_the_horizon(conn: psycopg.Connection) -> None:
    # The calendar repeats after 400 years: from each 29 February to the next one on the same weekday.
    farthest = value(
        conn,
        """
        with leap as (
            select make_date(y, 2, 29) as day from generate_series(1996, 2800, 4) y
            where y % 100 <> 0 or y % 400 = 0
        )
        select max(extract(year from l.next) - extract(year from l.day)) from (
            select day, lead(day) over (partition by extract(dow from day) order by day) as next from leap
        ) l
        """,
    )
    assert farthest == 40
    assert upcoming(conn, "0 0 29 2 */4", "2072-03-01 00:00+00") != []


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # Skipped: 02:00 to 03:00 on 29 March; it runs at the jump, once.
        ("30 2 * * *", BERLIN, "2026-03-28 12:00+00", ["2026-03-29 03:00:00+02:00", "2026-03-30 02:30:00+02:00"]),
        ("0,30 2,3 29 3 *", BERLIN, "2026-03-28 12:00+00", ["2026-03-29 03:00:00+02:00", "2026-03-29 03:30:00+02:00"]),
        ("30 2 * * *", NEW_YORK, "2026-03-08 00:00-05", ["2026-03-08 03:00:00-04:00", "2026-03-09 02:30:00-04:00"]),
        # Half an hour: 02:00 to 02:30 on 4 October.
        ("15 2 * * *", LORD_HOWE, "2026-10-03 12:00+10:30", ["2026-10-04 02:30:00+11:00", "2026-10-05 02:15:00+11:00"]),
        ("45 2 * * *", LORD_HOWE, "2026-10-03 12:00+10:30", ["2026-10-04 02:45:00+11:00", "2026-10-05 02:45:00+11:00"]),
        # Doubled: 02:00 to 03:00 on 25 October; it runs in the first pass, once.
        ("30 2 * * *", BERLIN, "2026-10-24 12:00+00", ["2026-10-25 02:30:00+02:00", "2026-10-26 02:30:00+01:00"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31 12:00-04", ["2026-11-01 01:30:00-04:00", "2026-11-02 01:30:00-05:00"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-04 12:00+11", ["2026-04-05 01:45:00+11:00", "2026-04-06 01:45:00+10:30"]),
        # Asked from within the second pass: it had its run.
        ("50 2 * * *", BERLIN, "2026-10-25 02:10+01", ["2026-10-26 02:50:00+01:00"]),
        # Minute or hour begins with a star: elapsed time. The doubled hour twice, the skipped one not at all.
        ("*/30 * * * *", BERLIN, "2026-03-29 01:15+01", ["2026-03-29 01:30:00+01:00", "2026-03-29 03:00:00+02:00"]),
        (
            "*/30 * * * *",
            BERLIN,
            "2026-10-25 01:45+02",
            [
                "2026-10-25 02:00:00+02:00",
                "2026-10-25 02:30:00+02:00",
                "2026-10-25 02:00:00+01:00",
                "2026-10-25 02:30:00+01:00",
                "2026-10-25 03:00:00+01:00",
            ],
        ),
        (
            "0 * * * *",
            NEW_YORK,
            "2026-11-01 00:30-04",
            ["2026-11-01 01:00:00-04:00", "2026-11-01 01:00:00-05:00", "2026-11-01 02:00:00-05:00"],
        ),
        (
            "*/15 * * * *",
            LORD_HOWE,
            "2026-04-05 01:20+11",
            [
                "2026-04-05 01:30:00+11:00",
                "2026-04-05 01:45:00+11:00",
                "2026-04-05 01:30:00+10:30",
                "2026-04-05 01:45:00+10:30",
                "2026-04-05 02:00:00+10:30",
            ],
        ),
        ("* 2 * * *", BERLIN, "2026-03-28 12:00+00", ["2026-03-30 02:00:00+02:00"]),
        # A day that a zone left out: Samoa had no 30 December 2011.
        (
            "0 12 30 12 *",
            "Pacific/Apia",
            "2011-12-29 12:00-10",
            ["2011-12-31 00:00:00+14:00", "2012-12-30 12:00:00+14:00"],
        ),
    ],
)
def test_daylight_saving(conn: psycopg.Connection, expression: str, zone: str, after: str, expected: list[str]) -> None:
    assert upcoming(conn, expression, after, zone, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ("60 * * * *", "minute of a cron expression must be 0 to 59"),
        ("-1 * * * *", "minute of a cron expression must be 0 to 59"),
        ("0 24 * * *", "hour of a cron expression must be 0 to 23"),
        ("0 0 0 * *", "day of month of a cron expression must be 1 to 31"),
        ("0 0 32 * *", "day of month of a cron expression must be 1 to 31"),
        ("0 0 L * *", "day of month of a cron expression must be 1 to 31"),
        ("0 0 ? * *", "day of month of a cron expression must be 1 to 31"),
        ("0 0 1 13 *", "month of a cron expression must be 1 to 12 or jan to dec"),
        ("0 0 1 janu *", "month of a cron expression must be 1 to 12 or jan to dec"),
        ("0 0 1 mon *", "month of a cron expression must be 1 to 12 or jan to dec"),
        ("0 0 * * 8", "day of week of a cron expression must be 0 to 7"),
        ("0 0 * * mon#2", "day of week of a cron expression must be 0 to 7"),
        ("61 0 0 * * *", "second of a cron expression must be 0 to 59"),
        ("*/0 * * * *", "minute of a cron expression must be 0 to 59"),
        ("*/90 * * * *", "minute of a cron expression must be 0 to 59"),
        ("30-10 * * * *", "minute of a cron expression must be 0 to 59"),
        ("1,,2 * * * *", "minute of a cron expression must be 0 to 59"),
        ("1-2-3 * * * *", "minute of a cron expression must be 0 to 59"),
        ("1, * * * *", "minute of a cron expression must be 0 to 59"),
        ("99999999999 * * * *", "minute of a cron expression must be 0 to 59"),
        ("* * * *", "five fields"),
        ("* * * * * * *", "five fields"),
        ("", "five fields"),
        ("@reboot", "five fields"),
        (None, "five fields"),
        ("* " * 1000, "five fields"),
    ],
)
def test_a_wrong_expression_is_refused_by_the_name_of_its_field(
    conn: psycopg.Connection, expression: str | None, field: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=field) as refused:
        conn.execute("select pgqueue.cron_next(%s, now())", [expression])
    assert refused.value.diag.message_detail
    assert refused.value.diag.message_hint


@pytest.mark.parametrize("zone", ["Mars/Phobos", "", None])
def test_an_unknown_time_zone_is_refused(conn: psycopg.Connection, zone: str | None) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"time ?zone"):
        conn.execute("select pgqueue.cron_next('* * * * *', now(), %s)", [zone])


@pytest.mark.parametrize("after", [None, "infinity", "-infinity", "20000-01-01", "0001-01-01"])
def test_after_must_be_an_instant_of_our_time(conn: psycopg.Connection, after: str | None) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="after must be"):
        conn.execute("select pgqueue.cron_next('* * * * *', %s)", [after])


# Against cronsim

RANGES = {"second": (0, 59), "minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}
NAMES = {
    "month": ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    "weekday": ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}
# Of each kind; up to four instants of each are compared. PGQUEUE_CRON=5000 runs for longer.
EXAMPLES = int(os.environ.get("PGQUEUE_CRON", "400"))
STEPS = {"second": 60, "minute": 60, "hour": 24, "day": 31, "month": 12, "weekday": 7}


@st.composite
def fields(draw: st.DrawFn, name: str) -> str:
    low, high = RANGES[name]
    values = st.integers(low, high).map(str)
    if name in NAMES:
        values |= st.sampled_from(NAMES[name]) | st.sampled_from([each.upper() for each in NAMES[name]])
    steps = st.integers(1, STEPS[name])
    ranges = st.tuples(st.integers(low, high), st.integers(low, high)).map(lambda r: f"{min(r)}-{max(r)}")
    items = (
        values
        | ranges
        | st.builds(lambda r, n: f"{r}/{n}", ranges.filter(lambda r: len(set(r.split("-"))) == 2), steps)
        | st.builds(lambda v, n: f"{v}/{n}", values, steps)
        | st.builds(lambda n: f"*/{n}", steps)
    )
    return draw(st.just("*") | st.lists(items, min_size=1, max_size=3).map(",".join))


five = st.builds(" ".join, st.tuples(*(fields(name) for name in list(RANGES)[1:])))
six = st.builds(" ".join, st.tuples(*(fields(name) for name in RANGES)))
instants = st.datetimes(datetime(1975, 1, 1), datetime(2095, 1, 1), timezones=st.just(UTC))
# Zones on which PostgreSQL's and Python's data agree, whichever is newer.
ZONES = [BERLIN, NEW_YORK, LORD_HOWE, "Asia/Kolkata", "America/Sao_Paulo", "Europe/London", "Pacific/Chatham"]
# Around the changes of the clocks, where it matters.
changes = st.builds(
    lambda day, hours: day + timedelta(hours=hours),
    st.sampled_from(
        [
            datetime(year, month, day, tzinfo=UTC)
            for year in (2015, 2019, 2026)
            for month, day in ((2, 16), (3, 8), (3, 29), (4, 5), (10, 4), (10, 25), (11, 1))
        ]
    ),
    st.floats(-40, 40),
)


@pytest.fixture(scope="module")
def shared(cloner: object) -> Iterator[psycopg.Connection]:
    """One database for all examples: nothing is written."""
    database = cloner.migrated()  # type: ignore[attr-defined]
    yield database.connect()
    cloner.drop(database)  # type: ignore[attr-defined]


def compare(conn: psycopg.Connection, expression: str, after: datetime, zone: str, n: int = 4) -> None:
    ours = [datetime.fromisoformat(each) for each in upcoming(conn, expression, after, zone, n)]
    try:
        simulated = CronSim(expression, after.astimezone(UTC if zone == "UTC" else ZoneInfo(zone)))
    except CronSimError:
        # It refuses 30 February and the like; a null, here.
        assert ours == []
        return
    if not ours:
        return  # It would search for ever, or raise.
    theirs: list[datetime] = []
    while len(theirs) < n:
        each = next(simulated).astimezone(UTC)
        # By the wall clock it gives the instant of a jump once for each time that was skipped.
        if each > after and each not in theirs:
            theirs.append(each)
    assert ours == theirs


@pytest.mark.long
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(expression=five | six, after=instants)
def test_in_utc_it_agrees_with_cronsim(shared: psycopg.Connection, expression: str, after: datetime) -> None:
    compare(shared, expression, after, "UTC")


@pytest.mark.long
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(expression=five, after=instants | changes, zone=st.sampled_from(ZONES))
def test_in_time_zones_it_agrees_with_cronsim(
    shared: psycopg.Connection, expression: str, after: datetime, zone: str
) -> None:
    if zone != LORD_HOWE or not any(each.startswith("*") for each in expression.split()[:2]):
        compare(shared, expression, after, zone)


@pytest.mark.long
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    step=st.sampled_from([1, 7, 15, 20, 59]),
    hours=st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True),
    after=changes,
    zone=st.sampled_from(ZONES),
)
def test_on_elapsed_time_every_minute_whose_local_time_fits_runs_by_definition(
    shared: psycopg.Connection, step: int, hours: list[int], after: datetime, zone: str
) -> None:
    info = ZoneInfo(zone)
    expected: list[datetime] = []
    at = after.replace(second=0, microsecond=0)
    while len(expected) < 40:
        at += timedelta(minutes=1)
        local = at.astimezone(info)
        if local.hour in hours and local.minute % step == 0 and at > after:
            expected.append(at)
    ours = upcoming(shared, f"*/{step} {','.join(map(str, hours))} * * *", after, zone, 40)
    assert [datetime.fromisoformat(each) for each in ours] == expected


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    hours=st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True),
    minutes=st.lists(st.integers(0, 59), min_size=1, max_size=4, unique=True),
    seconds=st.lists(st.integers(0, 59), min_size=1, max_size=2, unique=True),
    after=changes,
    zone=st.sampled_from(ZONES),
)
def test_by_the_wall_clock_each_local_time_runs_once_by_definition(
    shared: psycopg.Connection, hours: list[int], minutes: list[int], seconds: list[int], after: datetime, zone: str
) -> None:
    """Each local time of the expression, as the instant of its first pass, or of the jump that skipped it."""
    info = ZoneInfo(zone)
    first_day = after.astimezone(info).date() - timedelta(days=1)
    expected = set()
    for day in (first_day + timedelta(days=n) for n in range(4)):
        for hour in hours:
            for minute in minutes:
                for second in seconds:
                    local = datetime(day.year, day.month, day.day, hour, minute, second, tzinfo=info)
                    at = local.astimezone(UTC)
                    if at.astimezone(info).replace(tzinfo=None) != local.replace(tzinfo=None):
                        # Skipped: back to the first second with the new offset.
                        offset = at.astimezone(info).utcoffset()
                        while (at - timedelta(seconds=1)).astimezone(info).utcoffset() == offset:
                            at -= timedelta(seconds=1)
                    expected.add(at)
    expected = {at for at in expected if at > after}
    expression = " ".join(",".join(map(str, each)) for each in (seconds, minutes, hours)) + " * * *"
    ours = [datetime.fromisoformat(each) for each in upcoming(shared, expression, after, zone, min(5, len(expected)))]
    assert ours == sorted(expected)[: len(ours)]
    assert len(ours) == min(5, len(expected))


def test_it_takes_no_more_than_a_few_hundred_microseconds(shared: psycopg.Connection) -> None:
    """The bound is ten times what it takes, for a busy machine; what matters is that it does not step by minutes."""
    for expression in ("*/5 * * * *", "30 2 * * mon-fri", "0 0 29 2 */7", "0 0 31 2 *", "59 23 31 12 *"):
        query = """
            with t as materialized (select clock_timestamp() as begun),
            r as materialized (
                select count(pgqueue.cron_next(%s, begun + n * interval '1 h', 'Europe/Berlin')) as n
                from t, generate_series(1, 200) n
            )
            select extract(epoch from clock_timestamp() - t.begun) / 200 * 1e6 from t, r
        """
        # The best of several, for a busy machine stops some of them.
        took = min(value(shared, query, expression) for _ in range(5))
        assert took < 5000, (expression, took)
