"""`pgqueue tasks schema`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pgqueue import cli
from pgqueue.errors import ConfigError

pytestmark = pytest.mark.skipif(find_spec("pydantic") is None, reason="pydantic is not installed")

TASKS = """
from datetime import date, datetime, timedelta
from uuid import UUID
from pydantic import BaseModel, Field
from pgqueue import App

app = App()

class Item(BaseModel):
    sku: str
    count: int = Field(gt=0)

@app.task(validate=True)
def ship(order: int, items: list[Item], within: timedelta = timedelta(days=1)) -> None: ...

@app.task(validate=True, accumulate=True)
def index(payloads: dict[str, list[Item]]) -> None: ...

@app.task
def unchecked(anything) -> None: ...

@app.task
def plan(at: datetime, days: set[date], id: UUID = UUID(int=0), key: bytes = b"") -> None: ...
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "schema_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "schema_tasks"


def run(*options: str) -> dict[str, dict[str, object]]:
    done = CliRunner().invoke(cli.cli, ["tasks", "schema", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    schemas: dict[str, dict[str, object]] = json.loads(done.output)
    return schemas


def test_it_prints_the_schemas_of_all_tasks_with_the_formats_of_their_types(module: str) -> None:
    schemas = run("-r", module)
    assert set(schemas) == {"ship", "index", "unchecked", "plan"}
    plan = schemas["plan"]["properties"]
    formats = {name: each.get("format") for name, each in plan.items()}  # type: ignore[attr-defined]
    assert formats == {"at": "date-time", "days": None, "id": "uuid", "key": "base64url"}
    assert plan["days"]["items"]["format"] == "date"  # type: ignore[index]
    assert schemas["plan"]["required"] == ["at", "days"]
    assert list(schemas["unchecked"]["properties"]) == ["anything"]  # type: ignore[call-overload]
    ship = schemas["ship"]
    assert ship["required"] == ["order", "items"]
    assert ship["additionalProperties"] is False
    assert ship["properties"]["within"]["format"] == "duration"  # type: ignore[index]
    assert ship["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schemas["index"]["required"] == ["sku", "count"]


def test_only_the_named_ones(module: str) -> None:
    assert set(run("ship", "-r", module)) == {"ship"}


def test_a_task_that_is_not_there_is_refused(module: str) -> None:
    with pytest.raises(ConfigError, match="known: index, plan, ship, unchecked"):
        run("nothing", "-r", module)
