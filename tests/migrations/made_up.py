"""A revision that is made up, to stand behind those that there are."""

from __future__ import annotations

from pathlib import Path

_REVISION = """
from pathlib import Path
from pgqueue.schema.migrate import run_sql

revision, down_revision, branch_labels, depends_on = "{new}", "{old}", None, None
SQL_DIGEST = ""


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql({down!r})
"""


def add_revision(
    migrations: Path, old: str, new: str, up: str | None = None, down: str | None = None, name: str = "made_up"
) -> None:
    """Write the revision `new` after `old` into a copy of migrations/. Without SQL it adds a column to jobs."""
    file = migrations / "versions" / f"{new}_{name}"
    up = up or f"alter table pgqueue.jobs add column made_up_{new} integer default 7;"
    down = down or f"alter table pgqueue.jobs drop column made_up_{new};"
    file.with_suffix(".py").write_text(_REVISION.format(old=old, new=new, down=down))
    file.with_suffix(".sql").write_text(up)
