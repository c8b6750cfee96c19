"""Without the store, replicas are routed to only while somebody who runs them says that they are there."""

from collections.abc import Sequence

import anyio
import pytest

from remuda.core.ids import NodeId, ReplicaKey
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.router.confirmation import Confirming
from remuda.router.live_table import Tables
from remuda.router.table import Route, RoutedModel, Table
from remuda.wire.models import RunningModel
from tests.unit.router.frontends import HandClock
from tests.unit.scheduler.rig import ScriptedEngine, ScriptedWorker, ScriptedWorkerHttp

pytestmark = pytest.mark.anyio

OURS, PEER = NodeId("ours"), NodeId("peer")
SERVER = ReplicaEndpoint("ours:50050", "http", token="its-token")


def a_route(index: int, node: NodeId = OURS) -> Route:
    instance = f"i-{index}" if node == OURS else ""
    key, endpoint = ReplicaKey("qwen", index), ReplicaEndpoint(f"{node}:{index}")
    return Route(key, node, node, endpoint, instance, worker=SERVER if node == OURS else None)


def running(*indexes: int) -> Sequence[RunningModel]:
    return [RunningModel(model_id="qwen", replica_index=index, instance=f"i-{index}") for index in indexes]


class Rig:
    """A frontend with two replicas on a node of ours, and one on a peer. Nobody answers before told to."""

    def __init__(self) -> None:
        self.clock, self.tables = HandClock(), Tables()
        self.worker, self.engine, self.http = ScriptedWorker(), ScriptedEngine(), ScriptedWorkerHttp()
        self.http.up = False
        self.read_s = self.clock.passed_s
        self.confirming = Confirming(
            self.tables, self.worker, self.http, self.engine, self.clock, read_s=lambda: self.read_s
        )
        routes = (a_route(0), a_route(1), a_route(2, PEER))
        self.tables.replace(Table({"qwen": RoutedModel(ModelConfig(name="qwen", backend="echo"), routes)}))

    def runs(self, *indexes: int) -> None:
        """What the worker of our node says."""
        self.worker.runs[OURS] = running(*indexes)

    def answers_over_http(self, *running: RunningModel) -> None:
        self.http.up, self.http.runs = True, running

    @property
    def routed(self) -> list[int]:
        return [route.key.index for route in self.tables.now.models["qwen"].routes]

    async def looks(self, *, times: int) -> Sequence[list[int]]:
        """What is routed to after each of them."""
        found = []
        for _ in range(times):
            self.clock.passed_s += 5
            await self.confirming.look()
            found.append(self.routed)
        return found


async def test_while_the_store_is_read_nobody_is_asked() -> None:
    rig = Rig()
    for _ in range(3):
        rig.read_s = rig.clock.passed_s + 5
        assert await rig.looks(times=1) == [[0, 1, 2]]
    assert rig.engine.probed == []


async def test_replicas_that_are_confirmed_are_routed_to_for_as_long_as_it_takes() -> None:
    rig = Rig()
    rig.runs(0, 1)
    assert await rig.looks(times=100) == [[0, 1, 2]] * 100
    assert {one.address for one in rig.engine.probed} == {"peer:2"}, "one question for a node of ours"


async def test_process_that_its_worker_does_not_have_is_not_routed_to() -> None:
    rig = Rig()
    rig.worker.runs[OURS] = [
        RunningModel(model_id="qwen", replica_index=0, instance="i-0"),
        RunningModel(model_id="qwen", replica_index=1, instance="another"),
    ]
    assert await rig.looks(times=1) == [[0, 2]]


async def test_without_the_bus_the_worker_is_asked_over_http() -> None:
    rig = Rig()
    rig.answers_over_http(*running(0, 1))
    assert await rig.looks(times=10) == [[0, 1, 2]] * 10
    assert {one.address for one in rig.engine.probed} == {"peer:2"}
    assert set(rig.http.asked) == {SERVER}


async def test_a_port_that_answers_for_another_model_confirms_nothing() -> None:
    rig = Rig()
    stranger = RunningModel(model_id="phi", replica_index=0, address="ours:1", instance="i-9")
    rig.answers_over_http(*running(0), stranger)
    assert await rig.looks(times=1) == [[0, 2]], "though a health call at its port would be answered"


async def test_healthy_ports_do_not_stand_in_for_a_worker_that_answers_nobody() -> None:
    rig = Rig()
    assert await rig.looks(times=3) == [[0, 1, 2], [0, 1, 2], [2]]


async def test_replicas_of_a_worker_of_an_older_release_are_asked_themselves() -> None:
    rig = Rig()
    rig.http.up = rig.http.older_release = True
    assert await rig.looks(times=10) == [[0, 1, 2]] * 10


async def test_replica_that_refuses_connections_is_not_routed_to() -> None:
    rig = Rig()
    rig.runs(0, 1)
    rig.engine.health = [False]
    assert await rig.looks(times=2) == [[0, 1], [0, 1, 2]]


async def test_replica_that_nobody_confirms_for_15_seconds_is_not_routed_to_until_somebody_does() -> None:
    rig = Rig()
    rig.engine.health = [None] * 3
    assert await rig.looks(times=3) == [[0, 1, 2], [0, 1, 2], []]
    rig.answers_over_http(*running(0, 1))
    assert await rig.looks(times=1) == [[0, 1, 2]]


async def test_model_that_nobody_confirms_is_not_waited_for_as_if_it_were_about_to_come_back() -> None:
    rig = Rig()
    rig.engine.health = [None] * 3
    await rig.looks(times=3)
    assert not rig.tables.know("qwen")


async def test_store_that_is_back_is_believed() -> None:
    rig = Rig()
    rig.runs()
    rig.engine.health = [False]
    assert await rig.looks(times=1) == [[]]
    rig.read_s = rig.clock.passed_s + 5
    assert await rig.looks(times=1) == [[0, 1, 2]]


async def test_node_that_does_not_answer_holds_up_no_other() -> None:
    rig = Rig()
    asked: list[NodeId] = []
    over_bus = rig.worker.running

    async def hang(node: NodeId) -> object:
        asked.append(node)
        await anyio.sleep_forever()
        return await over_bus(node)

    rig.worker.running = hang  # type: ignore[method-assign,assignment]
    rig.answers_over_http(*running(0))
    assert await rig.looks(times=1) == [[0, 2]], "and it is asked over HTTP"
    assert asked == [OURS]
