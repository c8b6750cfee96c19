"""What frontends found when they called nodes, by HTTP or over the bus: the latest by node and frontend."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Generic, TypeVar

from sqlalchemy import Connection, Table, bindparam, delete, insert, select

from remuda.core.ids import NodeId
from remuda.fleet.model import CommandProbe, Dial
from remuda.store import liveness
from remuda.store.schema import command_probes, node_dials, nodes

F = TypeVar("F", Dial, CommandProbe)

_BOOTS = (
    select(nodes.c.id, nodes.c.boot_id)
    .where(nodes.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(nodes.c.id)
    .with_for_update(read=True, key_share=True)
)


class Findings(Generic[F]):
    """One table of them. Statements are built once: they run again and again."""

    def __init__(self, table: Table, make: Callable[[NodeId, str, str, datetime], F]) -> None:
        columns = table.c
        self._make: Callable[[NodeId, str, str, datetime], F] = make
        self._all = select(table).where(liveness.listened_lately(table)).order_by(columns.frontend)
        self._of_node = self._all.where(columns.node_id == bindparam("node"))
        self._forget = delete(table).where(columns.node_id == bindparam("called"))
        self._replace = self._forget.where(columns.frontend == bindparam("caller"))
        self._insert = insert(table)

    def read(
        self, connection: Connection, now: datetime, node_id: NodeId | None = None
    ) -> Mapping[NodeId, Sequence[F]]:
        """Of frontends that are still there; of one node, or of all."""
        if node_id is None:
            rows = connection.execute(self._all, liveness.lately(now))
        else:
            rows = connection.execute(self._of_node, {**liveness.lately(now), "node": node_id})
        found: defaultdict[NodeId, list[F]] = defaultdict(list)
        for row in rows:
            one = self._make(NodeId(row.node_id), row.frontend, row.problem, row.checked_at)
            found[one.node_id].append(one)
        return dict(found)

    def record(self, connection: Connection, found: Sequence[F]) -> None:
        """Nodes that were removed or restarted meanwhile are left out."""
        ids = sorted({one.node_id for one in found})
        boots = {row.id: row.boot_id for row in connection.execute(_BOOTS, {"ids": ids})}
        # Written in one order by everyone, for the sake of frontends that write the same rows at once.
        in_order = sorted(found, key=lambda one: (one.node_id, one.frontend))
        latest = {
            (one.node_id, one.frontend): one
            for one in in_order
            if one.node_id in boots and one.boot_id in (None, boots[one.node_id])
        }
        if not latest:
            return
        connection.execute(self._replace, [{"called": node, "caller": by} for node, by in latest])
        connection.execute(
            self._insert,
            [
                {
                    "node_id": one.node_id,
                    "frontend": one.frontend,
                    "problem": one.problem,
                    "checked_at": one.checked_at,
                }
                for one in latest.values()
            ],
        )

    def forget(self, connection: Connection, node_id: NodeId) -> None:
        connection.execute(self._forget, {"called": node_id})


DIALS = Findings(node_dials, Dial)
PROBES = Findings(command_probes, CommandProbe)
