"""Taking leave: both words name the boot that leaves, so that a late one does not count against the next."""

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from remuda.core.errors import NotFound
from remuda.core.ids import BootId, NodeId
from remuda.wire.nodes import (
    BusTrouble,
    Departure,
    Heartbeat,
    HeartbeatReply,
    ModelRow,
    RegisterReply,
    RegisterRequest,
)
from remuda.worker.membership import depart

pytestmark = pytest.mark.anyio


class Said:
    """A frontend that notes what it is told."""

    def __init__(self) -> None:
        self.words: list[tuple[str, NodeId, Departure]] = []
        self.removed = False
        self.removed_later = False  # Between the two words.

    async def drain(self, node: NodeId, farewell: Departure) -> None:
        if self.removed:
            raise NotFound("there is no such node")
        self.words.append(("drain", node, farewell))

    async def deregister(self, node: NodeId, farewell: Departure) -> None:
        if self.removed_later:
            raise NotFound("there is no such node")
        self.words.append(("deregister", node, farewell))

    async def models(self, node: NodeId) -> Sequence[ModelRow]:
        return ()

    async def register(self, request: RegisterRequest) -> RegisterReply:
        raise NotImplementedError

    async def heartbeat(self, node: NodeId, beat: Heartbeat) -> HeartbeatReply:
        raise NotImplementedError

    async def bus_trouble(self, node: NodeId, trouble: BusTrouble) -> None:
        raise NotImplementedError


async def test_a_farewell_names_its_boot() -> None:
    frontend, boot = Said(), Departure(boot_id="boot-7")
    await depart(frontend, NodeId("node-1"), BootId("boot-7"))
    assert frontend.words == [("drain", NodeId("node-1"), boot), ("deregister", NodeId("node-1"), boot)]


async def test_a_worker_whose_node_was_removed_says_so_once_and_asks_no_further() -> None:
    frontend = Said()
    frontend.removed = True
    with capture_logs() as logged:
        assert await depart(frontend, NodeId("node-1"), BootId("boot-7"))
    assert frontend.words == []
    assert [line["event"] for line in logged] == ["node_was_removed"]


async def test_a_node_that_is_removed_while_its_worker_stops_is_noticed() -> None:
    frontend = Said()
    frontend.removed_later = True
    assert await depart(frontend, NodeId("node-1"), BootId("boot-7"))


async def test_a_worker_that_leaves_for_good_says_so() -> None:
    frontend = Said()
    await depart(frontend, NodeId("node-1"), BootId("boot-7"), for_good=True)
    assert frontend.words[-1] == ("deregister", NodeId("node-1"), Departure(boot_id="boot-7", for_good=True))
