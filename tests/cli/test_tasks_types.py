"""`pgqueue tasks types`: what its files say, and that the languages read them."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pgqueue import cli
from pgqueue.cli.type_declarations import TaskTypes, go, typescript

pytestmark = pytest.mark.skipif(find_spec("pydantic") is None, reason="pydantic is not installed")

TASKS = """
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from pgqueue import App

app = App()

class Colour(Enum):
    RED = "red"
    BLUE = "blue"

@dataclass
class Item:
    sku: UUID
    price: Decimal
    colour: Colour = Colour.RED

@app.task(name="shop.ship-order")
def ship(
    order: int, items: list[Item], at: datetime, days: set[date] | None = None, size: tuple[int, str] = (1, ""),
    weights: dict[str, float] = {}, first: Item | None = None, anything: Any = None, **more: Any,
) -> Item: ...

@app.task(accumulate=True)
def index(payloads: dict[str, list[Item]]) -> None: ...
"""

TYPESCRIPT = """
export type Item = {
  sku: string /* uuid */;
  price: number | string;
  colour?: Colour;
};

export type ShopShipOrderArgs = {
  order: number;
  items: Array<Item>;
  at: string /* date-time */;
  days?: Array<string /* date */> | null;
  size?: [number, string];
  weights?: Record<string, number>;
  first?: Item | null;
  anything?: unknown;
  [name: string]: unknown;
};
"""

GO = """
type ShopShipOrderArgs struct {
	Order int64 `json:"order"`
	Items []Item `json:"items"`
	At time.Time `json:"at"`
	Days []string `json:"days,omitempty"` // date
	Size []any `json:"size,omitempty"`
	Weights map[string]float64 `json:"weights,omitempty"`
	First *Item `json:"first,omitempty"`
	Anything any `json:"anything,omitempty"`
}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "types_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "types_tasks"


def run(*options: str) -> str:
    done = CliRunner().invoke(cli.cli, ["tasks", "types", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_typescript_has_the_arguments_and_the_result_of_each_task_by_its_name(module: str) -> None:
    text = run("--lang", "typescript", "-r", module)
    assert TYPESCRIPT in text
    assert 'export type Colour = "red" | "blue";' in text
    assert '  "shop.ship-order": { args: ShopShipOrderArgs; result: ShopShipOrderResult };\n' in text
    assert '  "index": { args: IndexArgs; result: IndexResult };\n' in text
    assert "index" not in run("shop.ship-order", "--lang", "typescript", "-r", module)


def test_go_has_a_type_for_each_and_reads_them(module: str, tmp_path: Path) -> None:
    text = run("--lang", "go", "--package", "shop", "-r", module)
    assert GO in text
    assert '\tTaskShopShipOrder = "shop.ship-order"\n' in text
    assert "package shop\n" in text
    if shutil.which("gofmt"):
        subprocess.run(["gofmt", "-e"], input=text, text=True, check=True, capture_output=True)


def test_types_of_one_name_are_shared_if_they_are_the_same_and_told_apart_if_not() -> None:
    def task(name: str, kind: str) -> TaskTypes:
        item = {"type": "object", "properties": {"a": {"type": kind}}, "required": ["a"]}
        arguments = {
            "type": "object", "properties": {"item": {"$ref": "#/$defs/Item"}}, "required": ["item"],
            "$defs": {"Item": item},
        }  # fmt: skip
        return TaskTypes(name, arguments, {})

    text = typescript([task("one", "string"), task("two", "string"), task("three", "integer")])
    assert text.count("export type Item = ") == 1
    assert "export type ThreeItem = {\n  a: number;\n};" in text
    assert "export type TwoArgs = {\n  item: Item;\n};" in text
    assert "export type ThreeArgs = {\n  item: ThreeItem;\n};" in text


def test_names_that_a_language_does_not_take_are_written_so_that_it_does() -> None:
    properties = {"odd name": {"type": "string"}, "odd-name": {"type": "null"}, "2": {"enum": [1, "a"]}}
    tasks = [TaskTypes(name, {"type": "object", "properties": properties}, {}) for name in ("a-b", "a.b")]
    assert '  "odd name"?: string;\n  "odd-name"?: null;\n  "2"?: 1 | "a";\n' in typescript(tasks)
    text = go(tasks, "t")
    assert '\tTaskAB = "a-b"\n\tTaskAB2 = "a.b"\n' in text
    assert '\tOddName *string `json:"odd name,omitempty"`\n\tOddName2 any `json:"odd-name,omitempty"`\n' in text
    assert '\tT2 any `json:"2,omitempty"`\n' in text


def test_a_definition_that_has_the_name_of_a_type_of_the_task_is_told_apart() -> None:
    def task(name: str) -> TaskTypes:
        item = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        arguments = {
            "type": "object", "properties": {"args": {"$ref": "#/$defs/ShipArgs"}}, "required": ["args"],
            "$defs": {"ShipArgs": item},
        }  # fmt: skip
        return TaskTypes(name, arguments, {"type": "integer"})

    text = typescript([task("ship")])
    assert "export type ShipArgs = {\n  a: number;\n};" in text
    assert "export type ShipShipArgs = {\n  args: ShipArgs;\n};" in text
    assert '  "ship": { args: ShipShipArgs; result: ShipResult };\n' in text
    assert "type ShipShipArgs struct {\n\tArgs ShipArgs `json:" in go([task("ship")], "t")
