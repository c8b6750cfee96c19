"""Why a replica is unloaded, as a value beside the words. Earlier releases read and write only those."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("replicas", sa.Column("reason", sa.Text()))
