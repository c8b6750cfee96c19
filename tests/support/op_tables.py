"""The tables of operations, read behind the store's back."""

import sqlite3
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from remuda.core.ids import NodeId, ReplicaKey
from remuda.ops.model import Kind, OpId, Stage, State, Wish
from remuda.scheduler.model import ReplicaState
from remuda.store.connections import Connections
from remuda.store.fleet_rows import insert_node
from tests.support.clocks import START, HostClock
from tests.support.inline_database import driver_connection, migrated_in_memory
from tests.support.nodes import node
from tests.support.remembered_reads import Answers, Statements

NODES_MOST = 50


class OperationRow(NamedTuple):
    id: OpId
    change: int
    kind: Kind
    backend: str
    wish: Wish
    canary: bool
    finished: bool


class StepRow(NamedTuple):
    op: OpId
    node: NodeId
    state: State
    stage: Stage
    attempt: int
    failures: int
    version: int
    reason: str
    proves: bool
    digest: str
    problem: str

    @property
    def key(self) -> tuple[OpId, NodeId]:
        return self.op, self.node


class ProgressRow(NamedTuple):
    op: OpId
    node: NodeId
    attempt: int
    fraction: float


class ReplicaRow(NamedTuple):
    key: ReplicaKey
    node: NodeId
    state: ReplicaState
    memory_bytes: int
    in_vram: bool
    instance: str
    boot: str | None
    op: OpId
    revision: str
    why: str


_OPERATIONS = """
SELECT id, change, kind, backend, wish, json_extract(roll_out, '$.canary'), finished_at IS NOT NULL
FROM operations WHERE change > ? ORDER BY change
"""
_STEPS = """
SELECT op_id, node, state, stage, attempt, failures, version, reason, proves,
       json_extract(goal, '$.digest'), coalesce(json_extract(problem, '$.code'), '')
FROM steps WHERE op_id = ? ORDER BY node
"""
_PROGRESS = """
SELECT op_id, node, number, json_extract(progress, '$.fraction')
FROM attempts WHERE op_id = ? AND progress IS NOT NULL
"""
_UNLOADS = """
SELECT number, json_extract(source, '$.model'), json_extract(source, '$.replica'),
       json_extract(source, '$.name')
FROM operations WHERE kind = 'unload' AND number > ? ORDER BY number
"""
_REPLICAS = """
SELECT model, number, node_id, state, memory_bytes, in_vram, instance, boot, op_id, revision, why
FROM replicas ORDER BY model, number
"""


class UnloadRow(NamedTuple):
    """That a replica is to go."""

    number: int
    key: ReplicaKey
    why: str


class Tables:
    def __init__(self, connections: Connections, statements: Statements, clock: HostClock) -> None:
        self.connections = connections
        self._connection = driver_connection(connections)
        self.answers = Answers(self._connection, statements, clock.now)

    def operations(self, after: int = 0) -> list[OperationRow]:
        return [
            OperationRow(op, change, Kind(kind), backend, Wish(wish), bool(canary), bool(finished))
            for op, change, kind, backend, wish, canary, finished in self._rows(_OPERATIONS, after)
        ]

    def steps(self, op: OpId) -> list[StepRow]:
        return [
            StepRow(row[0], row[1], State(row[2]), Stage(row[3]), *row[4:]) for row in self._rows(_STEPS, op)
        ]

    def progress(self, op: OpId) -> list[ProgressRow]:
        return [ProgressRow(*row) for row in self._rows(_PROGRESS, op)]

    def replicas(self) -> list[ReplicaRow]:
        return [
            ReplicaRow(ReplicaKey(model, number), node, ReplicaState(state), memory, bool(in_vram), *facts)
            for model, number, node, state, memory, in_vram, *facts in self._rows(_REPLICAS)
        ]

    def unloads(self, after: int) -> list[UnloadRow]:
        found = self._rows(_UNLOADS, after)
        return [UnloadRow(number, ReplicaKey(model, index), why) for number, model, index, why in found]

    def asked_by(self, op: OpId) -> str:
        [(who,)] = self._rows("SELECT asked_by FROM operations WHERE id = ?", op)
        return str(who)

    def models(self) -> dict[str, str]:
        """Their configurations, by name."""
        return dict(self._rows("SELECT name, text FROM models"))

    def terms(self) -> dict[str, str]:
        """What admins have declared of models, as it is stored."""
        return dict(self._rows("SELECT model, terms FROM model_scheduling"))

    def latest_change(self) -> int:
        [(latest,)] = self._rows("SELECT latest FROM change_count")
        return int(latest)

    def remove_node(self, node_id: NodeId) -> None:
        self._connection.execute("DELETE FROM nodes WHERE id = ?", (node_id,))

    def _rows(self, query: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(query, values)


def node_id(number: int) -> NodeId:
    return NodeId(f"node-{number:02}")


@cache
def _prepared(nodes: int) -> tuple[Connections, Statements, bytes]:
    """Migrated and filled with nodes once per process; each seed begins with a copy."""
    connections = migrated_in_memory(HostClock())
    with connections.writing.connect() as connection, connection.begin():
        for number in range(nodes):
            insert_node(
                connection, node(id=node_id(number), name=f"n{number:02}", created_at=START, labels={})
            )
    return connections, Statements(connections.pool), driver_connection(connections).serialize()


def fresh_tables(clock: HostClock, nodes: int = NODES_MOST) -> Tables:
    connections, statements, image = _prepared(max(nodes, NODES_MOST))
    driver_connection(connections).deserialize(image)
    return Tables(replace(connections, now=lambda _: clock.now()), statements, clock)
