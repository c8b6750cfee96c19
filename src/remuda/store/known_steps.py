"""Steps that are looked at again and again, read once per version."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, Row, bindparam, select, tuple_

from remuda.core.ids import NodeId
from remuda.ops.model import Operation, OpId, Step
from remuda.store.ops_rows import batches, to_step
from remuda.store.schema import steps

Key = tuple[OpId, NodeId]
Mark = Row[tuple[object]]
"""A row with the `op_id`, `node` and `version` of a step."""

_BY_KEY: Final = select(steps).where(
    steps.c.op_id.in_(bindparam("ops", expanding=True)),  # By itself, SQLite finds no index for the pairs.
    tuple_(steps.c.op_id, steps.c.node).in_(bindparam("keys", expanding=True)),
)


class KnownSteps:
    """Whatever is written about a step gives it another version, so that the version says all."""

    def __init__(self) -> None:
        self._known: dict[Key, Step] = {}  # Replaced as a whole: several threads read at once.

    def read(self, connection: Connection, marks: Sequence[Mark], of: Mapping[OpId, Operation]) -> list[Step]:
        """The steps of these marks, in their order. `of` are the operations that they belong to."""
        known = self._known
        unknown = [
            (mark.op_id, mark.node)
            for mark in marks
            if (step := known.get((mark.op_id, mark.node))) is None or step.version != mark.version
        ]
        if unknown:
            known = known | {step.key: step for step in _read(connection, unknown, of)}
            self._known = known
        return [known[mark.op_id, mark.node] for mark in marks]

    def forget_others(self, of: Collection[OpId]) -> None:
        self._known = {key: step for key, step in self._known.items() if step.op in of}


def _read(connection: Connection, keys: Sequence[Key], of: Mapping[OpId, Operation]) -> list[Step]:
    return [
        to_step(row, of[OpId(row.op_id)])
        for batch in batches(keys)
        for row in connection.execute(_BY_KEY, {"ops": list({op for op, _ in batch}), "keys": batch}).all()
    ]
