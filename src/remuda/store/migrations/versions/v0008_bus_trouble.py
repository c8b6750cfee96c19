"""What a worker says of its own connection to the bus, when that does not work."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("bus_trouble_boot_id", sa.Text()))
    op.add_column("nodes", sa.Column("bus_trouble_sequence", sa.BigInteger()))
    op.add_column("nodes", sa.Column("bus_trouble", sa.Text()))
