"""The tables, read behind the store's back, and the database host they live on."""

import json
import sqlite3
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from remuda.core.ids import BootId, MachineId, NodeId
from remuda.store.connections import Connections
from tests.support.clocks import HostClock
from tests.support.inline_database import InlineDatabase, driver_connection, migrated_in_memory


class NodeRow(NamedTuple):
    id: NodeId
    name: str
    machine_id: MachineId
    boot_id: BootId
    approved: bool
    drained: bool
    leaving: bool
    departed: bool
    last_heartbeat: int
    bus_trouble_heard_at: int | None
    vram_budget_override: str | None
    max_replicas_override: int | None
    report_boot_id: BootId | None
    report_sequence: int | None
    secret_hash: str
    claim: str | None

    @property
    def claim_id(self) -> NodeId | None:
        return None if self.claim is None else NodeId(json.loads(self.claim)["id"])


_NODES = f"SELECT {', '.join(NodeRow._fields)} FROM nodes ORDER BY name"
_LABELS = "SELECT node_id, key, value FROM node_labels WHERE source = 'admin' ORDER BY key"


@dataclass(frozen=True, slots=True)
class State:
    """What is written about the fleet at one moment."""

    nodes: dict[NodeId, NodeRow]
    admin_labels: dict[NodeId, dict[str, str]]

    @property
    def waiting(self) -> list[NodeId]:
        """Who could be approved: nodes, and machines that claim a node's name."""
        pending = [row.id for row in self.nodes.values() if not row.approved]
        return pending + [row.claim_id for row in self.nodes.values() if row.claim_id is not None]

    def named(self, name: str) -> NodeRow | None:
        return next((row for row in self.nodes.values() if row.name == name), None)


class Books:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def state(self) -> State:
        rows = map(NodeRow._make, self._connection.execute(_NODES))
        labels: dict[NodeId, dict[str, str]] = {}
        for node_id, key, value in self._connection.execute(_LABELS):
            labels.setdefault(node_id, {})[key] = value
        return State({row.id: row for row in rows}, labels)

    def revoked(self) -> frozenset[str]:
        return frozenset(
            key for (key,) in self._connection.execute("SELECT public_key FROM revoked_bus_keys")
        )


@cache
def _prepared() -> tuple[Connections, bytes]:
    """Migrated once per process; a seed begins with a copy. One engine for all: it remembers statements."""
    connections = migrated_in_memory(HostClock())
    return connections, driver_connection(connections).serialize()


def fresh_database(clock: HostClock) -> tuple[InlineDatabase, Books]:
    connections, image = _prepared()
    connection = driver_connection(connections)
    connection.deserialize(image)
    return InlineDatabase(replace(connections, now=lambda _: clock.now())), Books(connection)
