"""Callers who have proven nothing are looked up, a few at a time."""

import anyio
import pytest

from remuda.core import limits
from remuda.core.errors import NotFound, Unauthorized, Unavailable
from remuda.core.ids import NodeId
from remuda.fleet.identity import CallerIdentity
from remuda.fleet.model import Node
from remuda.fleet.registry import Callers
from tests.support.nodes import node

pytestmark = pytest.mark.anyio

HOLDER = CallerIdentity("10.0.0.7", "hash-of-its-secret")
NODE = node(secret_hash=HOLDER.bearer_hash)


class Rows:
    """Answers only while `open` is set."""

    def __init__(self) -> None:
        self.asked = 0
        self.open = anyio.Event()

    async def look_up(self, node_id: NodeId) -> Node:
        self.asked += 1
        await self.open.wait()
        if node_id != NODE.id:
            raise NotFound("there is no such node")
        return NODE


def heard(node_id: NodeId, caller: CallerIdentity) -> bool:
    return (node_id, caller) == (NODE.id, HOLDER)


def nobody_heard(node_id: NodeId, caller: CallerIdentity) -> bool:
    return False


async def test_who_was_heard_as_the_node_is_not_looked_up_before_a_write() -> None:
    rows = Rows()
    rows.open.set()
    callers = Callers(rows.look_up, heard)
    await callers.prove(NODE.id, HOLDER)
    assert rows.asked == 0
    await callers.identify(NODE.id, HOLDER)
    assert rows.asked == 1
    with pytest.raises(NotFound):
        await callers.prove(NodeId("unknown"), HOLDER)
    await Callers(rows.look_up, nobody_heard).prove(NODE.id, HOLDER)
    with pytest.raises(Unauthorized):
        await callers.prove(NODE.id, CallerIdentity("10.0.0.7", "another-hash"))


async def test_a_flood_of_wrong_secrets_is_bounded_and_keeps_no_node_out() -> None:
    rows = Rows()
    callers = Callers(rows.look_up, heard)
    refused: list[str] = []

    async def attack(number: int) -> None:
        try:
            await callers.prove(NODE.id, CallerIdentity("10.0.0.66", f"guess-{number}"))
        except (Unauthorized, Unavailable) as error:
            refused.append(error.code)

    async with anyio.create_task_group() as tasks:
        room = limits.CALLERS_LOOKED_UP_MAX + limits.CALLERS_WAITING_MAX
        for number in range(room + 3):
            tasks.start_soon(attack, number)
        await anyio.wait_all_tasks_blocked()
        assert rows.asked == limits.CALLERS_LOOKED_UP_MAX
        assert refused == ["unavailable"] * 3
        await callers.prove(NODE.id, HOLDER)  # At once.
        rows.open.set()
    assert sorted(refused) == ["unauthorized"] * room + ["unavailable"] * 3
