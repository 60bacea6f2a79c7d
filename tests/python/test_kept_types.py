"""Arguments and results keep their types by the function's annotations, with pydantic and without it."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, NewType, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import psycopg
import pytest

import pgqueue
from pgqueue import App
from pgqueue.db.json import from_json, to_json
from pgqueue.errors import InvalidArgument, InvalidPayload
from pgqueue.testing import assert_enqueued, drain, perform
from tests.calls import enqueue, job
from tests.databases import Database
from tests.workers import done, working

pydantic = pytest.importorskip("pydantic")


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


@dataclass
class Transfer:
    wei: int


class Pair(NamedTuple):
    day: date
    n: int


class Row(TypedDict, total=False):
    at: datetime
    note: str


Sku = NewType("Sku", UUID)


@dataclass
class Point:
    x: float
    at: datetime


@dataclass
class Tree:
    day: date
    below: list[Tree] = field(default_factory=list)


@dataclass
class Named(Point):
    name: str = ""


class Plain:
    def __init__(self) -> None: ...


class Item(pydantic.BaseModel):  # type: ignore[misc,name-defined]
    sku: str
    price: Decimal = Decimal(1)


AT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

# A type, a value, and the value in JSON.
KEPT: dict[str, tuple[Any, Any, Any]] = {
    "datetime": (datetime, AT, "2030-01-02T03:04:05.678901Z"),
    "naive datetime": (datetime, datetime(2030, 1, 2), "2030-01-02T00:00:00"),
    "date": (date, date(2030, 1, 2), "2030-01-02"),
    "time": (time, time(3, 4, 5), "03:04:05"),
    "timedelta": (timedelta, timedelta(days=1, seconds=3, microseconds=5), "P1DT3.000005S"),
    "no timedelta": (timedelta, timedelta(0), "PT0S"),
    "UUID": (UUID, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "Decimal": (Decimal, Decimal("1.10"), "1.10"),
    "Enum": (Colour, Colour.BLUE, 2),
    "bytes": (bytes, b"\xff\xfe?>", "__4_Pg=="),
    "Path": (Path, Path("a/b"), "a/b"),
    "PurePosixPath": (PurePosixPath, PurePosixPath("/a"), "/a"),
    "set": (set[UUID], {UUID(int=1)}, ["00000000-0000-0000-0000-000000000001"]),
    "frozenset": (frozenset[int], frozenset({1}), [1]),
    "tuple": (tuple[int, date], (1, date(2030, 1, 2)), [1, "2030-01-02"]),
    "long tuple": (tuple[Decimal, ...], (Decimal(1), Decimal("2.5")), ["1", "2.5"]),
    "bare tuple": (tuple, (1, "a"), [1, "a"]),
    "NamedTuple": (Pair, Pair(date(2030, 1, 2), 1), ["2030-01-02", 1]),
    "dataclass": (Point, Point(1.5, AT), {"x": 1.5, "at": "2030-01-02T03:04:05.678901Z"}),
    "dataclass in itself": (
        Tree, Tree(date(2030, 1, 2), [Tree(date(2030, 1, 3))]),
        {"day": "2030-01-02", "below": [{"day": "2030-01-03", "below": []}]},
    ),
    "TypedDict": (Row, {"at": AT, "note": "n"}, {"at": "2030-01-02T03:04:05.678901Z", "note": "n"}),
    "dict": (dict[str, list[date]], {"a": [date(2030, 1, 2)]}, {"a": ["2030-01-02"]}),
    "keys": (dict[int, UUID], {7: UUID(int=1)}, {"7": "00000000-0000-0000-0000-000000000001"}),
    "NewType": (Sku, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "Optional": (date | None, date(2030, 1, 2), "2030-01-02"),
    "None": (date | None, None, None),
    "Union": (date | int, 5, 5),
}  # fmt: skip


@pytest.fixture(params=["pydantic", "standard library"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "pydantic":
        monkeypatch.setitem(sys.modules, "pydantic", None)
    name: str = request.param
    return name


def task_of(hint: Any, got: list[Any] | None = None, **options: Any) -> Any:
    def t(value, plain=None):  # type: ignore[no-untyped-def]
        if got is not None:
            got.append(value)
        return value

    t.__annotations__ = {"value": hint, "return": hint}
    return App().task(store_result=True, **options)(t)


@pytest.mark.parametrize("kind", KEPT)
def test_a_value_arrives_as_the_type_that_it_had_and_is_plain_json_in_between(kind: str, library: str) -> None:
    hint, value, written = KEPT[kind]
    got: list[Any] = []
    t = task_of(hint, got)
    assert t.bind(value) == {"value": written}
    # As JSON, too, it may be given.
    assert t.bind(written) == {"value": written}
    assert perform(t, value).result == value
    assert type(got[0]) is type(value)
    assert t.dump_result(value) == written
    assert t.load_result(written) == value


async def test_worker_drain_schedules_batches_and_copies_keep_types(
    database: Database, conn: psycopg.Connection, library: str
) -> None:
    app = App()
    got: list[Any] = []

    @app.schedule("0 0 1 1 *", args={"at": AT, "tags": {"x"}})
    @app.task(store_result=True)
    def t(at: datetime, tags: set[str] | None = None, n: int = 1, **rest: Any) -> tuple[date, int]:
        got.append((at, tags, n, rest))
        return at.date(), n

    assert app.schedules["t"].args == {"at": "2030-01-02T03:04:05.678901Z", "tags": ["x"]}
    first = t.enqueue(conn, AT, {"a"})
    [second] = pgqueue.enqueue_many(conn, t, [{"at": AT, "n": 5, "more": [1]}])
    [third] = pgqueue.enqueue_batch(conn, [t.using(priority=1).job(AT)])
    assert pgqueue.enqueue_copy(conn, [{"task": t, "args": {"at": AT}}]) == {"inserted": 1}
    # From SQL, or by the name.
    fifth = pgqueue.enqueue(conn, "t", {"at": AT, "tags": ["b"]})
    assert job(conn, fifth).args == {"at": "2030-01-02T03:04:05.678901Z", "tags": ["b"]}
    assert_enqueued(conn, t, args={"at": AT, "tags": {"a"}})
    async with working(app, database.dsn):
        assert await done(conn, first, second, third.job_id, fifth) == ["succeeded"] * 4
    assert (AT, {"a"}, 1, {}) in got
    assert (AT, None, 5, {"more": [1]}) in got
    assert (AT, {"b"}, 1, {}) in got
    assert pgqueue.wait(conn, second).result == ["2030-01-02", 5]
    assert pgqueue.wait(conn, second, task=t).result == (AT.date(), 5)
    with database.connect(autocommit=False) as mine:
        t.enqueue(mine, AT, n=7)
        assert drain(mine, app).succeeded == 1
        mine.rollback()
    assert got[-1] == (AT, None, 7, {})


async def test_payloads_of_an_accumulating_task_keep_their_types(
    database: Database, conn: psycopg.Connection, library: str
) -> None:
    app = App()
    got: list[dict[str, list[Point]]] = []

    @app.task(accumulate=True)
    def gather(payloads: dict[str, list[Point]]) -> None:
        got.append(payloads)

    ids = [gather.using(key="k", score=n).enqueue(conn, Point(n, AT)) for n in (1, 2)]
    async with working(app, database.dsn):
        await done(conn, *ids)
    assert got == [{"k": [Point(1, AT), Point(2, AT)]}]


def test_fields_that_a_dataclass_does_not_have_are_left_out(library: str) -> None:
    t = task_of(Point)
    assert t.bind({"x": 1, "at": "2030-01-02T03:04:05.678901Z", "more": 1})["value"].keys() == {"x", "at"}


def test_models_keep_their_types_without_validate() -> None:
    t = task_of(list[Item])
    assert t.bind([Item(sku="a", price=Decimal("1.10"))]) == {"value": [{"sku": "a", "price": "1.10"}]}
    assert perform(t, [Item(sku="a")]).result == [Item(sku="a")]
    assert perform(task_of(pydantic.HttpUrl), "https://a.b/c").result == pydantic.HttpUrl("https://a.b/c")


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (date | str, "2030-01-02"),
        (Point, Named(1, AT, "n")),
        (Decimal | str, "1"),
    ],
)
def test_what_would_come_back_as_another_value_is_refused_at_enqueue(hint: Any, value: Any, library: str) -> None:
    t = task_of(hint)
    with pytest.raises(InvalidArgument, match=r"fit task t: value would come back .* as another value"):
        t.bind(value)


def test_an_hour_that_comes_twice_is_no_other_value(library: str) -> None:
    twice = datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert task_of(datetime).bind(twice) == {"value": "2030-10-27T02:30:00+02:00"}
    assert task_of(Point).bind(Point(1, twice))["value"]["at"] == "2030-10-27T02:30:00+02:00"


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        (AT, r"\(plain: datetime\), or give its isoformat\(\)"),
        (date(2030, 1, 1), "isoformat"),
        (UUID(int=1), "str"),
        (Decimal(1), "str"),
        ({1}, "a list"),
        ((1, 2), "a list"),
        (b"a", "base64"),
        (Path("a"), "str"),
        (Colour.RED, "its value"),
        (timedelta(1), "total_seconds"),
        (Point(1, AT), "asdict"),
        (Item(sku="a"), "model_dump"),
        (Plain(), "use str"),
    ],
)
@pytest.mark.parametrize("hint", [None, date])
def test_an_argument_that_no_annotation_restores_is_refused_with_the_way_out(
    value: Any, instead: str, hint: Any, library: str
) -> None:
    t = task_of(hint) if hint else App().task(lambda plain, value=None: None, name="t")  # type: ignore[call-overload]
    for given, path in ((value, "plain"), ({"a": [1, value]}, "plain.a.1")):
        with pytest.raises(InvalidArgument, match=rf"argument {path} of task t is of type .*annotate .*{instead}"):
            t.bind(plain=given, value=None if hint is None else date(2030, 1, 1))


def test_by_name_json_and_what_has_one_text_pass_and_the_rest_is_refused(conn: psycopg.Connection) -> None:
    job_id = pgqueue.enqueue(conn, "t", {"a": [AT, AT.date(), UUID(int=1), Decimal("1.10"), 1, None, {"b": 1.5}]})
    assert job(conn, job_id).args == {
        "a": ["2030-01-02T03:04:05.678901Z", "2030-01-02", str(UUID(int=1)), "1.10", 1, None, {"b": 1.5}]
    }
    for value in (time(1), timedelta(1), {1}, (1,), b"a", Path("a"), Colour.RED, Point(1, AT), Item(sku="a")):
        for call in (
            lambda: pgqueue.enqueue(conn, "t", {"a": [value]}),  # noqa: B023
            lambda: pgqueue.enqueue_many(conn, "t", [{"a": [value]}]),  # noqa: B023
            lambda: pgqueue.enqueue_batch(conn, [{"task": "t", "args": {"a": [value]}}]),  # noqa: B023
            lambda: pgqueue.enqueue_copy(conn, [{"task": "t", "args": {"a": [value]}}]),  # noqa: B023
        ):
            with pytest.raises(
                InvalidArgument, match=r"^args.* cannot be written as JSON: a\.0 is of type .*through the task"
            ):
                call()


def test_a_payload_that_does_not_fit_names_where_and_not_what(conn: psycopg.Connection, library: str) -> None:
    app = App()

    @app.task(max_attempts=1)
    def t(points: list[Point], day: date) -> None: ...

    enqueue(conn, "t", {"points": [{"x": 1, "at": "secret"}], "day": "2030-01-01"})
    [error] = drain(conn, app, raise_errors=False).errors
    assert isinstance(error, InvalidPayload)
    assert "points.0.at: Input should be a valid datetime" in str(error)
    assert "secret" not in str(error)


def test_an_integer_beyond_64_bits_from_sql_arrives_exactly(library: str) -> None:
    wei = from_json("100000000000000000001")
    tasks = [(task_of(Transfer), {"wei": wei}), (task_of(Transfer | None), {"wei": wei})]
    if library == "pydantic":
        model = pydantic.create_model("Model", wei=int)
        tasks += [(task_of(model), {"wei": wei}), (task_of(int, validate=True), wei)]
    for task, given in tasks:
        read = task.typed.load({"value": given})["value"]
        assert getattr(read, "wei", read) == 100000000000000000001


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused_with_its_own_hint(number: float, library: str) -> None:
    tasks = [task_of(Point).bind, task_of(set[float]).bind, task_of(dict[int, float]).bind]
    values: list[Any] = [Point(number, AT), {number}, {1: number}]
    if library == "pydantic":
        model = pydantic.create_model("Model", x=float)
        tasks += [task_of(model).bind, task_of(float, validate=True).bind]
        values += [model(x=number), number]
    for bind, value in zip(tasks, values, strict=True):
        with pytest.raises(InvalidArgument, match=f"it holds the number {number}") as raised:
            to_json(bind(value), "args")
        assert "finite numbers only" in str(raised.value)


def test_a_task_of_json_types_converts_nothing_and_imports_nothing() -> None:
    app = App()

    @app.task
    def t(a: int, b: list[dict[str, str]] | None = None, *, c: Any = None, d: Plain | None = None, e=1) -> float:  # type: ignore[no-untyped-def]
        return 1.0

    assert t.typed is None
    assert t.typed_result is None
    # What is not annotated as something else is not checked either.
    assert t.bind("a", [1]) == {"a": "a", "b": [1]}


def test_a_default_of_none_allows_none(library: str) -> None:
    def t(at: datetime = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert App().task(t).bind(None) == {"at": None}
