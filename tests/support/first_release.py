"""A database as release 0.1 left it: made by the migrations of that release, and filled in its columns."""

from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, MetaData, Table, create_engine, insert

REVISION: Final = "0006"  # The last one that 0.1 knew.
_LONG_AGO: Final = 1_700_000_000_000_000  # Microseconds since the epoch.
_NODE: Final[dict[str, Any]] = {
    "node_type": "backend",
    "boot_id": "boot-of-0.1",
    "version": "0.1.0",
    **dict.fromkeys(("total_vram", "available_vram", "total_disk", "available_disk"), 0),
    **dict.fromkeys(("total_ram", "available_ram"), 16 << 30),
    **dict.fromkeys(("gpu_vendor", "gpu_compute_capability", "vram_budget"), ""),
    "capability": "default",
    "max_replicas": 1,
    "approved": True,
    **dict.fromkeys(("drained", "leaving", "departed"), False),
    **dict.fromkeys(("last_heartbeat", "created_at", "updated_at"), _LONG_AGO),
}


def write_database(path: Path, *nodes: dict[str, Any]) -> None:
    """Each node with an id, a name, a machine id and addresses; also with a label of its admin's."""
    path.parent.mkdir(parents=True)
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "remuda.store:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, REVISION)
        version = int(REVISION)
        _write(connection, "schema_info", version=version, min_compatible_version=1, updated_at=_LONG_AGO)
        for node in nodes:
            _write(connection, "nodes", **_NODE | node)
            label = {"key": "room", "value": "attic", "source": "admin"}
            _write(connection, "node_labels", node_id=node["id"], **label)
    engine.dispose()


def _write(connection: Connection, table: str, **values: object) -> None:
    connection.execute(insert(Table(table, MetaData(), autoload_with=connection)).values(values))
