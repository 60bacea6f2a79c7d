"""${message}"""

from pathlib import Path

from pgqueue.schema.migrate import run_sql

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None

# The digest of sql/ that goes with these tables: `python -m pgqueue.schema.bundled` prints it.
SQL_DIGEST = ""


def upgrade() -> None:
    run_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    run_sql("")
