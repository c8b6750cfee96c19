"""The kind of trouble a worker has with the bus, and whether one that was not reached has left it: values for
what was recognised by words before."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("bus_trouble_code", sa.Text(), nullable=False, server_default=""))
    op.add_column(
        "node_dials", sa.Column("bus_closed", sa.Boolean(), nullable=False, server_default=sa.false())
    )
