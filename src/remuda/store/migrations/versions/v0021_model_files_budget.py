"""An admin's budget for the model files that workers fetch to a node."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("files_budget_override", sa.Text(), nullable=True))
