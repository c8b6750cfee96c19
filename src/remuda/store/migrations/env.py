"""Run by Alembic for each upgrade, inside the transaction and under the lock that `migrate` holds."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
