"""Rows stay true without anybody asking: what is gone is forgotten, what is unwanted goes, and what nobody
knows is stopped; but nothing is concluded from silence."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from remuda.core.errors import Conflict
from remuda.fleet.verdicts import BackendInventory, ObservedNode
from remuda.ops.model import Kind, State
from remuda.ops.ports import Filter
from remuda.scheduler.model import ReplicaState
from remuda.scheduler.unloader import UnloadRequests
from remuda.scheduler.upkeep import DriftRepair, Upkeep, UpkeepPolicy
from remuda.wire.models import ModelStop, RunningModel
from tests.support.virtual_ops import time_passes
from tests.unit.scheduler.rig import NODE, Rig, a_model

pytestmark = pytest.mark.anyio


class Kept(Rig):
    """With an upkeep that looks when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = 0
        self.reloaded: list[str] = []
        self.no_room = False
        self.upkeep = self.of_a_frontend()

    def of_a_frontend(self) -> Upkeep:
        live = self.operations.live
        return Upkeep(
            self.replicas,
            live,
            self.catalogue,
            self.drift(),
            UnloadRequests(self.operations, self.standings, self.clock, self.entropy, self),
            in_flight=lambda key: self.busy,
            table=self,
            habits=UpkeepPolicy(timedelta(minutes=30)),
        )

    def drift(self) -> DriftRepair:
        live = self.operations.live
        return DriftRepair(self.replicas, self.worker, self.nodes, live, self, self, self)

    async def nodes(self) -> Sequence[ObservedNode]:
        """Of those without reports it has been listed that they have no backends."""
        return [
            replace(view, inventory=BackendInventory(view.standing.node.id, view.boot, self.clock.now(), ()))
            for view in await super().nodes()
        ]

    async def load_again(self, name: str, by: str) -> None:
        """As the service of models."""
        self.reloaded.append(name)
        if self.no_room:
            raise Conflict("no node can take it")

    async def looks(self, *after_s: float) -> None:
        """A heartbeat comes with every look."""
        for seconds in after_s:
            await time_passes(seconds)
            for machine in self.machines:
                machine.sequence += 1
            await self.upkeep.pass_once()

    async def unloads(self) -> list[str]:
        """Of which models, and why."""
        views = await self.operations.views(Filter(finished=False))
        return [
            f"{target.key.model}: {target.reason}"
            for view in views
            if view.operation.kind is Kind.UNLOAD and (target := view.operation.target) is not None
        ]


@pytest.fixture
async def kept() -> Kept:
    made = Kept()
    await made.configure()
    return made


# Rows against what workers say.


async def test_process_that_its_worker_twice_does_not_have_is_forgotten(kept: Kept) -> None:
    replica = await kept.loaded()
    kept.machine.running = kept.runs(replica)
    await kept.looks(10, 10)
    kept.machine.running = ()
    await kept.looks(10)
    assert len(await kept.rows()) == 1, "once is not enough"
    await kept.looks(10)
    assert await kept.rows() == ()
    assert kept.changes == 1


async def test_process_that_crashed_is_forgotten_at_once_and_loaded_again(kept: Kept) -> None:
    replica = await kept.loaded()
    kept.machine.running = kept.runs(replace(replica, instance="its successor", address="10.0.0.5:50101"))
    kept.no_room = True
    await kept.looks(10)
    assert await kept.rows() == ()
    assert kept.reloaded == ["qwen"]
    assert kept.lost == [(NODE, "qwen#0: its process on gpu-1 ended")]


async def test_requests_in_flight_keep_no_row_whose_process_is_gone(kept: Kept) -> None:
    await kept.loaded()
    kept.busy = 1
    await kept.looks(10, 10)
    assert await kept.rows() == ()


async def test_report_from_before_it_was_loaded_says_nothing(kept: Kept) -> None:
    await kept.loaded()
    await kept.looks(1, 1)
    assert len(await kept.rows()) == 1


async def test_worker_that_was_started_anew_has_nothing_of_before(kept: Kept) -> None:
    await kept.loaded()
    kept.machine.boot = "boot-2"
    await kept.looks(1)
    assert await kept.rows() == ()


async def test_silent_node_keeps_its_rows_for_ten_minutes(kept: Kept) -> None:
    await kept.loaded()
    kept.machine.silent_s = 300
    await kept.looks(10, 10)
    assert len(await kept.rows()) == 1
    kept.machine.silent_s = 700
    await kept.looks(10)
    assert await kept.rows() == ()


async def test_node_that_left_the_fleet_takes_its_rows_along(kept: Kept) -> None:
    await kept.loaded()
    kept.machines.pop(0)
    await kept.looks(1)
    assert await kept.rows() == ()


async def test_worker_without_reports_is_asked_and_says_it_twice(kept: Kept) -> None:
    replica = await kept.loaded()
    kept.machine.reports = False
    await kept.looks(130)
    assert len(await kept.rows()) == 1, "it did not answer, and that says nothing"
    kept.worker.runs[NODE] = [RunningModel(model_id="qwen", instance=replica.instance)]
    await kept.looks(10)
    kept.worker.runs[NODE] = []
    await kept.looks(130)
    assert len(await kept.rows()) == 1
    await kept.looks(10)
    assert await kept.rows() == ()


async def test_process_that_nobody_knows_is_stopped_after_a_while(kept: Kept) -> None:
    stray = await kept.loaded()
    assert await kept.replicas.remove(stray)
    kept.machine.running = kept.runs(stray)
    await kept.looks(5, 5, 5)
    assert kept.worker.stopped == []
    await kept.looks(30)
    assert kept.worker.stopped == [stray.instance]


async def test_process_that_is_being_loaded_is_no_stray(kept: Kept) -> None:
    replica, step = await kept.claimed()
    kept.machine.running = kept.runs(replica)
    await kept.looks(10, 40, 40)
    assert kept.worker.stopped == []
    assert (await kept.row()).op == step.op


# On their way.


async def test_row_whose_load_is_over_is_forgotten(kept: Kept) -> None:
    _, step = await kept.claimed()
    await kept.over(step, State.FAILED)
    await kept.looks(1)
    assert len(await kept.rows()) == 1, "whoever loads it is about to forget it"
    await kept.looks(2)
    assert await kept.rows() == ()


async def test_row_whose_load_lives_stays(kept: Kept) -> None:
    await kept.claimed()
    await kept.looks(60, 600)
    assert len(await kept.rows()) == 1


# Unwanted.


async def test_idle_replica_goes(kept: Kept) -> None:
    replica = await kept.loaded()
    kept.machine.running = kept.runs(replica)
    await kept.looks(29 * 60)
    assert await kept.unloads() == []
    await kept.looks(60)
    assert await kept.unloads() == ["qwen: it was not used for a while"]
    await kept.looks(5, 5)
    assert len(await kept.unloads()) == 1, "one operation is enough"


async def test_replica_in_use_stays(kept: Kept) -> None:
    replica = await kept.loaded()
    kept.machine.running = kept.runs(replica)
    kept.busy = 1
    await kept.looks(3600)
    assert await kept.unloads() == []


async def test_replica_of_another_configuration_goes(kept: Kept) -> None:
    await kept.loaded()
    await kept.configure(a_model("qwen", "context_size: 512\n"))
    await kept.looks(1)
    assert await kept.unloads() == ["qwen: its configuration changed"]


async def test_replica_of_a_model_that_was_removed_goes(kept: Kept) -> None:
    await kept.loaded()
    await kept.models.remove_model("qwen")
    await kept.looks(1)
    assert await kept.unloads() == ["qwen: its model was removed"]


async def test_unload_that_nobody_asked_for_or_that_failed_is_asked_for_again(kept: Kept) -> None:
    await kept.configure(a_model("new"))
    old = await kept.loaded()
    kept.machine.running = kept.runs(old)
    await kept.claimed("new", evict=[old.key])
    assert (await kept.row()).state is ReplicaState.UNLOADING
    await kept.looks(5)
    assert await kept.unloads() == [], "whoever marked it is about to ask"
    await kept.looks(10)
    assert await kept.unloads() == ["qwen: makes room for new#0"]


async def test_two_frontends_ask_once(kept: Kept) -> None:
    replica = await kept.loaded()
    kept.machine.running = kept.runs(replica)
    await time_passes(3600)
    await kept.upkeep.pass_once()
    await kept.of_a_frontend().pass_once()
    assert len(await kept.unloads()) == 1


async def test_process_of_a_peer_that_nobody_knows_is_stopped_when_told_twice(kept: Kept) -> None:
    kept.machine.reports = False
    kept.worker.runs[NODE] = [RunningModel(model_id="qwen", address="127.0.0.1:50101")]
    await kept.looks(1, 20)
    assert kept.worker.asked == []
    await kept.looks(10)
    [order] = kept.worker.asked
    assert isinstance(order, ModelStop)
    assert (order.process_key, order.expected_address) == ("qwen#0", "127.0.0.1:50101")


async def test_process_that_a_load_was_given_meanwhile_is_no_stray(kept: Kept) -> None:
    """Its row is written between the look at rows and the stop."""
    kept.machine.reports = False
    kept.worker.runs[NODE] = [RunningModel(model_id="qwen", address="10.0.0.5:50101")]
    repair, seen = kept.drift(), await kept.replicas.replicas()
    await repair.look(seen)
    await kept.loaded()
    await repair.look(replace(seen, now=seen.now + timedelta(seconds=40)))
    assert kept.worker.asked == []


# Idle.


async def test_use_that_another_frontend_notes_keeps_a_replica_that_is_kept_no_longer_than_used(
    kept: Kept,
) -> None:
    """Nothing is heard of it in any other way; and a moment after its end the replica goes."""
    await kept.configure(a_model("qwen", "keep_alive: 0\n"))
    replica = await kept.loaded()
    kept.machine.running = kept.runs(replica)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kept.upkeep.run)
        for _ in range(30):
            await kept.replicas.touch({replica.key: timedelta(seconds=0.9)})
            await time_passes(1)
            assert await kept.unloads() == []
        await time_passes(3)
        assert await kept.unloads() == ["qwen: it was not used for a while"]
        tasks.cancel_scope.cancel()


async def test_replica_that_stays_for_ever_does(kept: Kept) -> None:
    await kept.configure(a_model("qwen", "keep_alive: -1\n"))
    replica = await kept.loaded()
    kept.machine.running = kept.runs(replica)
    await kept.looks(3600, 3600)
    assert await kept.unloads() == []
