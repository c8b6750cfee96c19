"""Operations whose nodes come and go: the real reconciler, commander and store, on a clock that jumps."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio
import pytest

from remuda.core import limits
from remuda.core.ids import FrontendId
from remuda.ops.concurrency import proven
from remuda.ops.model import Kind, OpId, RollOut, State, Step
from remuda.ops.op_views import summary_of
from remuda.store.fleet import SqlFleetStore
from remuda.wire.backends import BackendDeleteReply, BackendInstallReply, BackendUpgradeReply
from remuda.wire.codec import Message
from tests.support.ops_rig import BUILD, ScriptedWorker, done, worker
from tests.support.virtual_ops import World, after, time_passes, virtually

BEAT_S = 5.0
ROLLING = RollOut(at_once=2, canary=True, proves=True)


async def never(payload: bytes) -> Message | None:
    await anyio.sleep_forever()
    return None


@dataclass(slots=True)
class Heard:
    """Nodes that heartbeat for as long as the test lets them."""

    world: World
    nodes: dict[str, ScriptedWorker] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)

    async def join(self, *names: str, takes_s: float = 10.0) -> None:
        for name in names:
            node = await worker(self.world.worker.bus, self.world.database, name, reports=True)
            await node.on("backend.upgrade", after(takes_s, BackendUpgradeReply(success=True)))
            await node.on("backend.install", done)
            self.nodes[name] = node

    async def for_s(self, seconds: float) -> None:
        fleet, end_s = SqlFleetStore(self.world.database), anyio.current_time() + seconds
        while anyio.current_time() < end_s:
            await fleet.listen(FrontendId("frontend-1"), resumed=False)
            for name, node in self.nodes.items():
                if name not in self.away:
                    await node.report()
            await time_passes(BEAT_S)

    async def upgrade(self, *, rolls_back: bool = True) -> None:
        nodes = [node.node for node in self.nodes.values()]
        frontend = self.world.frontend
        await frontend.submit(nodes, Kind.UPGRADE, roll_out=ROLLING, proves=True, rolls_back=rolls_back)

    async def steps(self) -> Mapping[str, Step]:
        return {step.node: step for step in await self.world.frontend.steps()}

    async def states(self) -> Mapping[str, State]:
        return {name: step.state for name, step in (await self.steps()).items()}

    async def message(self) -> str:
        return summary_of(await self.world.frontend.store.view(OpId("op-1"))).message


def test_another_node_goes_first_when_the_canary_stays_away_and_the_canary_is_done_when_it_returns() -> None:
    async def test(world: World) -> None:
        heard = Heard(world)
        await heard.join("b", "c", "d")
        canary = await worker(world.worker.bus, world.database, "a", reports=True)
        await canary.on("backend.upgrade", never)
        heard.nodes = {"a": canary, **heard.nodes}
        await heard.upgrade()
        await heard.for_s(30)
        assert await heard.states() == {
            "a": State.RUNNING,
            "b": State.PENDING,
            "c": State.PENDING,
            "d": State.PENDING,
        }

        heard.away = {"a"}
        await heard.for_s(limits.CANARY_AWAY_S - 30)
        assert "a has to succeed first and is offline" in (await heard.steps())["b"].reason
        assert "a: no heartbeat for" in await heard.message()
        assert [node.times("backend.upgrade") for node in heard.nodes.values()] == [1, 0, 0, 0]

        await heard.for_s(120)
        states = await heard.states()
        assert states == {"a": State.RUNNING, **dict.fromkeys("bcd", State.SUCCEEDED)}
        assert "3 of 4 nodes done, 1 at work. name-a: no heartbeat for" in await heard.message()

        await canary.on("backend.install", done)
        canary.boot += 1
        await canary.register()
        await canary.on("backend.upgrade", done)
        heard.away = set()
        await heard.for_s(120)
        assert (await heard.states())["a"] is State.SUCCEEDED

    virtually(test, reconciles=True)


def test_a_canary_that_is_back_in_time_keeps_its_place() -> None:
    async def test(world: World) -> None:
        heard = Heard(world)
        await heard.join("a", "b", "c", takes_s=200)
        await heard.upgrade()
        await heard.for_s(10)
        heard.away = {"a"}
        await heard.for_s(150)
        assert (await heard.states())["b"] is State.PENDING
        heard.away = set()
        await heard.for_s(60)
        assert (await heard.states())["a"] is State.SUCCEEDED
        assert [heard.nodes[name].times("backend.upgrade") for name in "abc"] == [1, 1, 1]

    virtually(test, reconciles=True)


def test_a_node_of_a_batch_that_goes_away_does_not_hold_up_the_next_batch() -> None:
    async def test(world: World) -> None:
        heard = Heard(world)
        await heard.join("a", "c", "d", "e", "f")
        for name in ("b1", "b2"):  # Right after the canary.
            node = await worker(world.worker.bus, world.database, name, reports=True)
            await node.on("backend.upgrade", never)
            heard.nodes[name] = node
        await heard.upgrade()
        await heard.for_s(60)
        batch = {"b1": State.RUNNING, "b2": State.RUNNING}
        assert await heard.states() == {"a": State.SUCCEEDED, **batch, **dict.fromkeys("cdef", State.PENDING)}
        heard.away = set(batch)
        await heard.for_s(180)
        assert await heard.states() == {**dict.fromkeys("acdef", State.SUCCEEDED), **batch}

    virtually(test, reconciles=True)


# The same wish once more.


async def has_a_disk(node: ScriptedWorker) -> None:
    """It installs and removes as it is told."""

    async def install(payload: bytes) -> Message:
        node.installed = [BUILD]
        await node.report()
        return BackendInstallReply(success=True)

    async def delete(payload: bytes) -> Message:
        node.installed = []
        await node.report()
        return BackendDeleteReply(success=True)

    await node.on("backend.install", install)
    await node.on("backend.delete", delete)


def test_an_install_that_is_joined_puts_back_what_was_removed_meanwhile() -> None:
    async def test(world: World) -> None:
        heard = Heard(world)
        for name in ("a", "b"):
            heard.nodes[name] = await worker(world.worker.bus, world.database, name, reports=True)
            await has_a_disk(heard.nodes[name])
        both, a = [node.node for node in heard.nodes.values()], heard.nodes["a"]
        heard.away = {"b"}
        await heard.for_s(60)
        await world.frontend.submit(both)
        await heard.for_s(60)
        assert await heard.states() == {"a": State.SUCCEEDED, "b": State.PENDING}

        await world.frontend.submit([a.node], Kind.REMOVE, op="op-2")
        await heard.for_s(60)
        assert a.installed == []
        await world.frontend.submit(both, op="op-3")
        await heard.for_s(60)
        assert (a.installed, a.times("backend.install")) == ([BUILD], 2)
        assert await heard.states() == {"a": State.SUCCEEDED, "b": State.PENDING}

        await world.frontend.submit(both, op="op-4")
        await heard.for_s(60)
        assert a.times("backend.install") == 2, "what a node still has is not installed again"

    virtually(test, reconciles=True)


# Workers that cannot say what they have proven.


@pytest.mark.parametrize(
    ("address", "state", "words"),
    [
        ("127.0.0.1:50052", State.SUCCEEDED, ""),
        ("", State.FAILED, "not proven: its worker does not say that it has started it"),
    ],
)
def test_a_peer_has_proven_what_it_has_started_and_nothing_else(
    address: str, state: State, words: str
) -> None:
    async def test(world: World) -> None:
        peer = world.worker
        peer.installed = [BUILD]
        await peer.on("backend.list", peer.list_installed)
        await peer.on("backend.upgrade", after(1, BackendUpgradeReply(success=True)))
        await peer.on("backend.install", after(1, BackendInstallReply(success=True, address=address)))
        heard = Heard(world, {peer.node: peer})
        await heard.upgrade(rolls_back=False)
        await heard.for_s(60)
        [step] = (await heard.steps()).values()
        assert (step.state, words in step.reason) == (state, True)
        assert proven(step) is bool(address)

    virtually(test, reconciles=True)
