"""Operations that were cleared from the history. Those that were dismissed stay in it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    # The default is for rows that are there, and for those that earlier releases go on writing.
    op.add_column("operations", sa.Column("cleared", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute("UPDATE operations SET cleared = dismissed")  # Until now the two were one.
