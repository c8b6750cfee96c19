"""Why a node's worker does not run, as the process that starts it says."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    # The default is for rows that earlier releases go on writing.
    op.add_column("nodes", sa.Column("ended", sa.Text(), nullable=False, server_default=""))
