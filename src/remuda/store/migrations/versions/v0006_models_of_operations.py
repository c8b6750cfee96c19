"""The model that a load or unload is about, in a column of its own: operations are looked for by it."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    # The default is for operations on backends, and for rows that earlier releases go on writing.
    op.add_column("operations", sa.Column("model", sa.Text(), nullable=False, server_default=""))
    operations = sa.table(
        "operations", sa.column("id"), sa.column("kind"), sa.column("source"), sa.column("model")
    )
    connection = op.get_bind()
    of_models = sa.select(operations.c.id, operations.c.source).where(
        operations.c.kind.in_(["load", "unload"])
    )
    for id, source in connection.execute(of_models).all():
        known = sa.update(operations).where(operations.c.id == id)
        connection.execute(known.values(model=json.loads(source).get("model", "")))
    op.create_index("operations_model", "operations", ["model", "number"])
