"""How alembic reaches the database: through the connection that `pgqueue.schema.migrate` hands over.

Run `pgqueue migrate`, not `alembic upgrade`: it also takes the lock and loads sql/ in the same transaction.
"""

from __future__ import annotations

from alembic import context

connection = context.config.attributes.get("connection")

if connection is None and not context.is_offline_mode():
    raise SystemExit("Run `pgqueue migrate`: it takes the lock and loads sql/ in the same transaction.")

context.configure(
    connection=connection,
    dialect_name="postgresql",
    version_table_schema="pgqueue",
    # pgqueue.schema.migrate opens and ends the one transaction.
    transactional_ddl=False,
    as_sql=context.is_offline_mode(),
)
context.run_migrations()
