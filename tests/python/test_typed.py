"""Arguments checked and converted by annotations, for tasks that ask for it."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import psycopg
import pytest

import pgqueue
from pgqueue import App, Job
from pgqueue.errors import ConfigError, InvalidArgument, InvalidPayload
from tests.calls import enqueue, job, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working

pydantic = pytest.importorskip("pydantic")


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    y: float


class Item(pydantic.BaseModel):  # type: ignore[misc,name-defined]
    sku: str
    count: Annotated[int, pydantic.Field(gt=0)] = 1
    price: Decimal = pydantic.Field(default=Decimal(0), alias="unitPrice")


class Strict(pydantic.BaseModel):  # type: ignore[misc,name-defined]
    model_config = pydantic.ConfigDict(strict=True)
    at: datetime


ITEM = Item(sku="a", count=2, unitPrice=Decimal("1.10"))
AT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.covers("A1")
async def test_arguments_arrive_as_the_types_that_they_had(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    got: list[tuple[Any, ...]] = []

    @app.task(validate=True)
    async def order(
        id: UUID,
        items: list[Item],
        day: date,
        where: Point,
        job: Job,
        colour: Colour = Colour.RED,
        tags: set[str] = frozenset(),  # type: ignore[assignment]
        *,
        strict: Strict | None = None,
        anything=None,  # type: ignore[no-untyped-def]
        **rest: Any,
    ) -> None:
        got.append((id, items, day, where, colour, tags, strict, anything, rest, job.args["day"]))

    first = order.enqueue(
        conn, UUID(int=1), [ITEM], AT.date(), Point(1, 2), tags={"x"}, strict=Strict(at=AT), anything=[1], more="m"
    )
    # From SQL, by the aliases or the names; what is left out is the function's default.
    plain = {
        "id": str(UUID(int=2)),
        "items": [{"sku": "b", "unitPrice": "2"}],
        "day": "2030-01-01",
        "where": {"x": 1, "y": 2},
    }
    second = enqueue(conn, "order", plain)
    assert job(conn, first).args["items"] == [{"sku": "a", "count": 2, "price": "1.10"}]
    async with working(app, database.dsn):
        assert await done(conn, first, second) == ["succeeded", "succeeded"]
    day = AT.date()
    one, two = sorted(got, key=lambda each: each[0])
    assert one == (
        UUID(int=1), [ITEM], day, Point(1, 2), Colour.RED, {"x"}, Strict(at=AT), [1], {"more": "m"}, "2030-01-01",
    )  # fmt: skip
    assert two[1:9] == ([Item(sku="b", unitPrice=2)], day, Point(1, 2), Colour.RED, frozenset(), None, None, {})


@pytest.mark.covers("A1")
async def test_a_payload_that_does_not_fit_fails_the_job_with_a_clear_error(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task(validate=True)
    async def retried(items: list[Item]) -> None: ...

    @app.task(validate=True, discard_on=InvalidPayload)
    def discarded(item: Item) -> None: ...

    first = enqueue(conn, "retried", {"items": [{"sku": "a", "count": "secret"}]})
    second = enqueue(conn, "discarded", {"item": {}, "extra": 1})
    async with working(app, database.dsn):
        await wait_until_async(lambda: job(conn, first).state == "failed")
        assert await done(conn, second) == ["dead"]
    found = job(conn, first).errors[0]
    assert found["class"] == "pgqueue.errors.InvalidPayload"
    assert "items.0.count: Input should be a valid integer" in found["message"]
    # Arguments may be secret, and errors are kept.
    assert "secret" not in str(found)
    assert "item.sku: Field required" in job(conn, second).errors[0]["message"]
    assert "extra: " in job(conn, second).errors[0]["message"]


def test_what_does_not_fit_is_refused_when_it_is_enqueued_through_the_task(conn: psycopg.Connection) -> None:
    app = App()

    @app.task(validate=True)
    def t(item: Item, n: int = 0) -> None: ...

    for wrong in (
        lambda: t.enqueue(conn, {"sku": "a", "count": 0}),
        lambda: t.enqueue(conn, ITEM, n="many"),
        lambda: t.enqueue_many(conn, [{"item": ITEM}, {"item": 5}]),
        lambda: t.enqueue(conn),
        lambda: pgqueue.enqueue(conn, t, {"n": 1}),
        lambda: pgqueue.enqueue_batch(conn, [t.using(queue="q").job(ITEM, n=[])]),
        lambda: pgqueue.enqueue_batch(conn, [{"task": t, "args": {}}]),
    ):
        with pytest.raises(InvalidArgument, match="fit task t"):
            wrong()
    assert value(conn, "select count(*) from pgqueue.jobs") == 0
    pgqueue.enqueue(conn, t, {"item": ITEM, "n": "5"})
    pgqueue.enqueue_batch(conn, [{"task": t, "args": {"item": ITEM, "n": "5"}}, t.using().job(ITEM, n=5)])
    assert (
        value(conn, "select count(*) from pgqueue.jobs where args ->> 'n' = '5' and args #>> '{item,sku}' = 'a'") == 3
    )
    # By its name it is JSON, and nothing is checked.
    pgqueue.enqueue(conn, "t", {"item": None})


@pytest.mark.covers("A1", "L3")
async def test_payloads_of_an_accumulating_task_are_typed(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    got: list[dict[str, list[Item]]] = []

    @app.task(validate=True, accumulate=True, batch_size=2)
    async def gather(payloads: dict[str, list[Item]]) -> None:
        got.append(payloads)

    ids = [
        gather.using(key="k", score=1).enqueue(conn, ITEM),
        gather.using(key="k", score=2).enqueue(conn, {"sku": "b"}),
        gather.using(key="k", score=3).enqueue(conn, sku="c", count="3"),
        # Without a key, from a producer that does not know that it accumulates.
        enqueue(conn, "gather", {"sku": "a", "count": 2, "unitPrice": "1.10"}),
    ]
    with pytest.raises(InvalidArgument, match="sku: Field required"):
        gather.enqueue(conn, {"n": 1})
    async with working(app, database.dsn):
        assert await done(conn, *ids) == ["succeeded"] * 4
    together = next(each for each in got if "k" in each)
    assert together == {"k": [ITEM, Item(sku="b"), Item(sku="c", count=3)]}
    assert [each for each in got if each is not together] == [{"": [ITEM]}]


def test_a_schedule_has_arguments_of_the_tasks_types() -> None:
    app = App()

    @app.schedule("0 * * * *", args={"day": date(2030, 1, 1)})
    @app.task(validate=True)
    def t(day: date) -> None: ...

    assert app.schedules["t"].args == {"day": "2030-01-01"}


def test_what_cannot_be_checked_is_refused_when_it_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()

    class Opaque: ...

    def unknown(it: Opaque) -> None: ...

    def missing(it: NoSuchName) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def flat(payloads: dict[str, int]) -> None: ...

    for function, options in ((unknown, {}), (missing, {}), (flat, {"accumulate": True})):
        with pytest.raises(ConfigError, match="annotat"):
            app.task(validate=True, **options)(function)
    # With the extra missing, or pydantic 1 in its place, it says which one.
    for found in (None, types.ModuleType("pydantic")):
        monkeypatch.setitem(sys.modules, "pydantic", found)
        with pytest.raises(ConfigError, match=r"pgqueue-sql\[pydantic\]"):
            app.task(validate=True)(flat)


def test_an_application_on_pydantic_1_has_its_arguments_written_as_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", types.ModuleType("pydantic"))
    app = App()

    @app.task
    def remind(at: datetime, order: UUID) -> None: ...

    order = UUID(int=17)
    assert remind.dump({"at": datetime(2026, 12, 24, tzinfo=UTC), "order": order}) == {
        "at": "2026-12-24T00:00:00Z",
        "order": str(order),
    }
