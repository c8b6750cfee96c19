"""How many replicas of models are wanted; and several of one model may be on their way at once."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.create_table(
        "model_scheduling",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("model", "terms")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("created_at", "updated_at")),
        sa.UniqueConstraint("model", name="model_scheduling_model_key"),
    )
    op.create_table(
        "model_cooldowns",
        sa.Column("model", sa.Text(), primary_key=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("fleet", "why")),
    )
    on_its_way = sa.text("state IN ('staging', 'loading')")
    op.drop_index("replicas_on_their_way", "replicas")
    op.create_index(
        "replicas_on_their_way", "replicas", ["model"], sqlite_where=on_its_way, postgresql_where=on_its_way
    )
