"""Responses that are kept for those who asked for them."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("id", sa.Text(), primary_key=True),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("owner", "model", "status", "previous_id")),
        sa.Column("background", sa.Boolean(), nullable=False),
        *(
            sa.Column(name, sa.LargeBinary(), nullable=False)
            for name in ("echo", "input", "output", "usage", "error", "incomplete")
        ),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("created", "completed", "kept_bytes", "used_at")
        ),
        sa.Column("lease_until", sa.BigInteger()),
    )
    op.create_index("responses_by_owner", "responses", ["owner", "used_at"])
    op.create_index("responses_by_use", "responses", ["used_at"])
