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
from datetime import timedelta
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


def test_it_prints_the_schemas_of_the_tasks_that_check_their_arguments(module: str) -> None:
    schemas = run("-r", module)
    assert set(schemas) == {"ship", "index"}
    ship = schemas["ship"]
    assert ship["required"] == ["order", "items"]
    assert ship["additionalProperties"] is False
    assert ship["properties"]["within"]["format"] == "duration"  # type: ignore[index]
    assert ship["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schemas["index"]["required"] == ["sku", "count"]


def test_only_the_named_ones(module: str) -> None:
    assert set(run("ship", "-r", module)) == {"ship"}


@pytest.mark.parametrize(
    ("name", "says"), [("nothing", "known: index, ship, unchecked"), ("unchecked", "validate=True")]
)
def test_a_task_without_a_schema_is_refused(module: str, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run(name, "-r", module)
