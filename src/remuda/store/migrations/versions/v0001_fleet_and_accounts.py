"""Nodes and what hangs on them, hearing, history, keys and secrets."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _count(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=nullable)


def _big(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False)


def _node_reference(column: str, on_delete: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], ["nodes.id"], ondelete=on_delete)


def upgrade() -> None:
    _create_nodes()
    _create_what_hangs_on_nodes()
    _create_history()
    _create_accounts()
    op.create_table(
        "schema_info",
        _count("version"),
        _count("min_compatible_version"),
        _big("updated_at"),
        sa.PrimaryKeyConstraint("version"),
    )


def _create_nodes() -> None:
    op.create_table(
        "nodes",
        *map(_text, ("id", "name", "node_type", "address", "http_address")),
        *map(_text, ("machine_id", "boot_id", "version")),
        *map(_big, ("total_vram", "available_vram", "total_ram", "available_ram")),
        *map(_big, ("total_disk", "available_disk")),
        *map(_text, ("gpu_vendor", "gpu_compute_capability", "capability", "vram_budget")),
        _text("vram_budget_override", nullable=True),
        _count("max_replicas"),
        _count("max_replicas_override", nullable=True),
        *map(_flag, ("approved", "drained", "leaving", "departed")),
        *map(_big, ("last_heartbeat", "created_at", "updated_at")),
        _text("report_boot_id", nullable=True),
        _big("report_sequence", nullable=True),
        _text("report_body", nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name", name="nodes_name_key"),
    )


def _create_what_hangs_on_nodes() -> None:
    op.create_table(
        "node_labels",
        *map(_text, ("node_id", "key", "value", "source")),
        sa.PrimaryKeyConstraint("node_id", "key"),
        _node_reference("node_id", "CASCADE"),
    )
    op.create_table(
        "node_dials",
        *map(_text, ("node_id", "frontend", "problem")),
        _big("checked_at"),
        sa.PrimaryKeyConstraint("node_id", "frontend"),
        _node_reference("node_id", "CASCADE"),
    )


def _create_history() -> None:
    op.create_table(
        "hearing_spans",
        sa.Column("id", _serial, primary_key=True),
        _text("frontend"),
        _big("since"),
        _big("until"),
    )
    op.create_table(
        "history",
        sa.Column("id", _serial, primary_key=True),
        _big("at"),
        _text("node_id", nullable=True),
        *map(_text, ("node_name", "event", "detail", "actor")),
        _node_reference("node_id", "SET NULL"),
    )
    op.create_index("ix_history_node_id", "history", ["node_id"])
    op.create_index("ix_history_node_name", "history", ["node_name"])


def _create_accounts() -> None:
    op.create_table(
        "revoked_bus_keys",
        _text("public_key"),
        _big("revoked_at"),
        sa.PrimaryKeyConstraint("public_key"),
    )
    op.create_table(
        "api_keys",
        *map(_text, ("id", "name", "role", "digest", "hint")),
        _big("created_at"),
        _big("revoked_at", nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest", name="api_keys_digest_key"),
    )
    in_force = sa.text("revoked_at IS NULL")
    op.create_index(
        "api_keys_name_in_force",
        "api_keys",
        ["name"],
        unique=True,
        sqlite_where=in_force,
        postgresql_where=in_force,
    )
    op.create_table(
        "secrets",
        *map(_text, ("name", "value")),
        _big("created_at"),
        sa.PrimaryKeyConstraint("name"),
    )
