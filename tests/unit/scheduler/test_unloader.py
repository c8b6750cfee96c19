"""An unload: nobody routes there any more, what is in flight ends, the process stops, the row goes; in this
order."""

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from remuda.core.errors import NodeUnreachable, Problem
from remuda.ops.model import (
    Ending,
    NotNeeded,
    OpId,
    ReplicaTarget,
    Source,
    State,
    Step,
    UnloadCause,
    UnloadReason,
)
from remuda.scheduler.measured_speed import Rate
from remuda.scheduler.model import Replica, Replicas, ReplicaState, unload_operation
from remuda.scheduler.unloader import Unloader
from remuda.wire.models import ModelStop, ModelStopReply, RunningModel
from tests.support.clocks import START
from tests.support.virtual_ops import time_passes
from tests.support.waiting import wait_until
from tests.unit.scheduler.rig import NODE, OTHER_NODE, OTHERS, OURS, Rig

pytestmark = pytest.mark.anyio

DRAIN = timedelta(minutes=5)
ASKED = UnloadReason(UnloadCause.ASKED, by="ada")


@pytest.fixture
async def rig() -> Rig:
    made = Rig()
    await made.configure()
    return made


def unloader(rig: Rig) -> Unloader:
    return Unloader(
        rig.replicas, rig.worker, rig.frontends, rig.operations.live, rig, DRAIN, took=rig.note_took
    )


def an_unload(replica: Replica) -> Step:
    target, source = ReplicaTarget(replica.key, replica.revision, ASKED), Source(replica.backend)
    return unload_operation(OpId("u-1"), target, source, replica.node, "gpu-1", by="test", now=START)[1]


async def idle_unload(rig: Rig, replica: Replica, cause: UnloadCause = UnloadCause.IDLE) -> Step:
    """Asked for now, by nobody in particular."""
    target = ReplicaTarget(replica.key, replica.revision, UnloadReason(cause))
    source, now = Source(replica.backend), rig.clock.now()
    operation, step = unload_operation(
        OpId("u-1"), target, source, replica.node, "gpu-1", by="remuda", now=now
    )
    await rig.operations.submit(operation, [step])
    return step


class Going:
    """An unload under way, and how it ended."""

    def __init__(self, rig: Rig, replica: Replica, step: Step | None = None) -> None:
        self.over = anyio.Event()
        self.problem: Ending = None
        self._rig, self._step = rig, step or an_unload(replica)

    async def run(self) -> None:
        self.problem = await unloader(self._rig).unload(self._step)
        self.over.set()


async def test_process_without_a_row_is_stopped(rig: Rig) -> None:
    replica = await rig.loaded()
    assert await rig.replicas.remove(replica)
    rig.worker.runs[NODE] = [
        RunningModel(model_id="qwen", replica_index=index, address="10.0.0.5:50100", instance=f"i-{index}")
        for index in (0, 1)
    ]
    assert await unloader(rig).unload(an_unload(replica)) is None
    assert rig.worker.stopped == ["i-0"]


async def test_unload_of_what_is_gone_with_its_node_is_done(rig: Rig) -> None:
    replica = await rig.loaded()
    assert await rig.replicas.remove(replica)
    assert await unloader(rig).unload(an_unload(replica)) is None, "nobody answers there, nor has to"


async def test_process_that_its_worker_started_in_place_of_a_crashed_one_is_stopped_too(rig: Rig) -> None:
    replica = await rig.loaded()
    rig.worker.stop_replies = [
        ModelStopReply(matched=True, address="10.0.0.5:50101", error="instance mismatch: another process"),
    ]
    assert await unloader(rig).unload(an_unload(replica)) is None
    orders = [one for one in rig.worker.asked if isinstance(one, ModelStop)]
    assert [(one.instance, one.expected_address) for one in orders] == [
        (replica.instance, replica.address),
        ("", "10.0.0.5:50101"),
    ]
    assert await rig.rows() == ()


async def test_how_long_stopping_took_is_told_once(rig: Rig) -> None:
    replica = await rig.loaded()
    rig.worker.stop_takes_s = 3.0
    rig.worker.stop_trouble = NodeUnreachable("it does not answer")
    assert isinstance(await unloader(rig).unload(an_unload(replica)), Problem)
    rig.worker.stop_trouble = None
    assert await unloader(rig).unload(replace(an_unload(replica), attempt=2)) is None
    assert rig.took == [], "how much of it was done at the first attempt is not known"
    other = await rig.loaded("qwen", index=1)
    assert await unloader(rig).unload(an_unload(other)) is None
    [(kind, node, model, took_s)] = rig.took
    assert (kind, node, model) == (Rate.UNLOAD, NODE, "qwen")
    assert took_s == pytest.approx(3, abs=0.5)


async def test_idle_replica_is_marked_stopped_and_forgotten(rig: Rig) -> None:
    replica = await rig.loaded()
    assert await unloader(rig).unload(an_unload(replica)) is None
    assert rig.worker.asked == [
        ModelStop(
            model_name="qwen",
            process_key="qwen#0",
            expected_address=replica.address,
            instance=replica.instance,
            config_revision=replica.revision,
        )
    ]
    assert await rig.rows() == ()
    assert rig.changes >= 2, "everybody is told when it is marked, and when it is gone"


async def test_replica_whose_load_was_never_answered_is_stopped_by_its_key(rig: Rig) -> None:
    replica, load = await rig.claimed()
    await rig.over(load, State.CANCELLED)
    assert await unloader(rig).unload(an_unload(replica)) is None
    assert rig.worker.stopped_unheard == [(replica.node, replica.key)]
    assert await rig.rows() == ()


async def test_row_says_why_it_goes(rig: Rig) -> None:
    replica = await rig.loaded()
    rig.frontends.held[OURS, replica.key] = 1
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Going(rig, replica).run)
        await time_passes(1)
        row = await rig.row()
        assert (row.state, row.why) == (ReplicaState.UNLOADING, ASKED)
        tasks.cancel_scope.cancel()


async def test_process_lives_until_every_frontend_knows_and_has_nothing_in_flight(rig: Rig) -> None:
    replica = await rig.loaded()
    rig.frontends.living = (OURS, OTHERS)
    going = Going(rig, replica)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(going.run)
        await time_passes(60)
        assert rig.worker.asked == [], "the other has not said that it knows, and may send more"
        rig.frontends.held[OTHERS, replica.key] = 2
        rig.frontends.seen[OTHERS] = (await rig.row()).change
        await time_passes(60)
        assert rig.worker.asked == [], "it has two requests there"
        rig.frontends.held.clear()
        with anyio.fail_after(1):
            await going.over.wait()
    assert rig.worker.stopped == [replica.instance]


async def test_frontend_that_dies_is_not_waited_for(rig: Rig) -> None:
    replica = await rig.loaded()
    rig.frontends.living = (OURS, OTHERS)
    going = Going(rig, replica)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(going.run)
        await time_passes(60)
        rig.frontends.living = (OURS,)
        with anyio.fail_after(1):
            await going.over.wait()
    assert await rig.rows() == ()


async def test_whoever_reads_for_ever_is_cut_off_in_the_end(rig: Rig) -> None:
    replica = await rig.loaded()
    rig.frontends.held[OURS, replica.key] = 1
    began_s = anyio.current_time()
    assert await unloader(rig).unload(an_unload(replica)) is None
    assert anyio.current_time() - began_s == pytest.approx(DRAIN.total_seconds(), abs=1)
    assert rig.worker.stopped == [replica.instance]
    assert await rig.rows() == ()


async def test_worker_that_does_not_listen_is_tried_again_later(rig: Rig) -> None:
    replica = await rig.loaded()
    rig.worker.stop_trouble = NodeUnreachable("nobody listens there")
    problem = await unloader(rig).unload(an_unload(replica))
    assert isinstance(problem, Problem)
    assert problem.retryable
    assert (await rig.row()).state is ReplicaState.UNLOADING, "a process may be there: it is not forgotten"
    rig.worker.stop_trouble = None
    assert await unloader(rig).unload(an_unload(replica)) is None
    assert await rig.rows() == ()


async def test_process_that_does_not_end_keeps_its_row(rig: Rig) -> None:
    replica = await rig.loaded()
    rig.worker.stop_reply = ModelStopReply(matched=True, error="it is stuck in the driver")
    problem = await unloader(rig).unload(an_unload(replica))
    assert isinstance(problem, Problem)
    assert "it is stuck in the driver" in problem.message
    assert len(await rig.rows()) == 1


async def test_process_that_is_another_by_now_is_left_alone_and_the_row_goes(rig: Rig) -> None:
    replica = await rig.loaded()
    rig.worker.stop_reply = ModelStopReply(matched=True, error="instance mismatch")
    assert await unloader(rig).unload(an_unload(replica)) is None
    assert await rig.rows() == ()


async def test_replica_that_is_gone_already_is_no_failure(rig: Rig) -> None:
    replica = await rig.loaded()
    assert await rig.replicas.remove(replica)
    assert await unloader(rig).unload(an_unload(replica)) is None
    assert rig.worker.asked == []


async def test_replica_that_is_being_loaded_anew_is_not_meant(rig: Rig) -> None:
    """An unload begins when the load it replaces is over: one that is at work was asked for later."""
    anew, _ = await rig.claimed()
    assert await unloader(rig).unload(an_unload(anew)) is None
    assert await rig.rows() == (anew,)
    assert rig.worker.stopped_unheard == []


async def test_replica_of_the_same_number_on_another_node_is_not_meant(rig: Rig) -> None:
    elsewhere = await rig.loaded(node=OTHER_NODE)
    meant = an_unload(elsewhere)
    assert meant.node == OTHER_NODE
    here = replace(meant, node=NODE)
    assert await unloader(rig).unload(here) is None
    assert await rig.rows() == (elsewhere,)


async def test_use_that_is_noted_meanwhile_does_not_keep_what_people_unload(rig: Rig) -> None:
    replica = await rig.loaded()
    rig.frontends.held[OURS, replica.key] = 1
    going = Going(rig, replica)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(going.run)
        await wait_until(lambda: rig.changes > 0)
        await rig.replicas.touch({replica.key: timedelta()})
        rig.frontends.held.clear()
    assert going.problem is None
    assert await rig.rows() == ()


# For want of use.


async def test_replica_that_is_still_idle_when_its_unload_begins_goes(rig: Rig) -> None:
    replica = await rig.loaded()
    await rig.replicas.touch({replica.key: timedelta()})
    await time_passes(60)
    step = await idle_unload(rig, replica)
    await time_passes(60)
    assert await unloader(rig).unload(step) is None
    assert await rig.rows() == ()


@pytest.mark.parametrize("cause", [UnloadCause.IDLE, UnloadCause.SURPLUS])
async def test_replica_that_was_used_before_its_unload_began_stays(rig: Rig, cause: UnloadCause) -> None:
    replica = await rig.loaded()
    step = await idle_unload(rig, replica, cause)
    await time_passes(35)
    await rig.replicas.touch({replica.key: timedelta(seconds=3)})
    assert await unloader(rig).unload(step) == NotNeeded("not needed any more: it was used again")
    assert rig.worker.asked == []
    assert (await rig.row()).change == replica.change, "nobody had to stop sending there"


async def test_replica_that_another_frontend_uses_when_its_unload_begins_stays(rig: Rig) -> None:
    replica = await rig.loaded()
    step = await idle_unload(rig, replica)
    rig.frontends.living = (OURS, OTHERS)
    rig.frontends.held[OTHERS, replica.key] = 1
    assert await unloader(rig).unload(step) is not None
    assert (await rig.row()).state is ReplicaState.LOADED
    assert rig.worker.asked == []


@pytest.mark.parametrize("told", ["in flight", "noted"])
async def test_replica_that_turns_out_to_be_used_while_it_is_marked_serves_again(rig: Rig, told: str) -> None:
    replica = await rig.loaded()
    rig.frontends.living = (OURS, OTHERS)
    going = Going(rig, replica, await idle_unload(rig, replica))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(going.run)
        await time_passes(5)
        assert (await rig.row()).state is ReplicaState.UNLOADING
        if told == "in flight":
            rig.frontends.held[OTHERS, replica.key] = 1
        else:
            await rig.replicas.touch({replica.key: timedelta(seconds=1)})
            rig.frontends.seen[OTHERS] = 1 << 30
    assert going.problem == NotNeeded("not needed any more: it was used again")
    row = await rig.row()
    assert (row.state, row.why, row.address) == (ReplicaState.LOADED, None, replica.address)
    assert rig.worker.asked == []


async def test_unload_that_was_begun_before_is_brought_to_its_end_though_it_is_used(rig: Rig) -> None:
    """Its process may have been told to stop already."""
    replica = await rig.loaded()
    step = await idle_unload(rig, replica)
    rig.worker.stop_trouble = NodeUnreachable("nobody listens there")
    assert await unloader(rig).unload(step) is not None
    rig.worker.stop_trouble = None
    await time_passes(1)
    await rig.replicas.touch({replica.key: timedelta()})
    assert await unloader(rig).unload(step) is None
    assert await rig.rows() == ()


async def test_idle_one_stays_if_its_model_has_no_more_than_it_is_to_have(rig: Rig) -> None:
    """Another frontend has just begun to take away another."""
    await rig.loaded(index=1, node=OTHER_NODE)
    replica = await rig.loaded()
    step = await idle_unload(rig, replica)
    asked: list[int] = []

    def may_go(seen: Replicas, one: Replica) -> bool:
        asked.append(len(seen.rows))
        return len(seen.rows) > 2

    its_unloader = Unloader(
        rig.replicas, rig.worker, rig.frontends, rig.operations.live, rig, DRAIN, may_go=may_go
    )
    ending = await its_unloader.unload(step)
    assert isinstance(ending, NotNeeded)
    assert "as many replicas as it has" in str(ending)
    assert asked == [2]
    assert {row.state for row in await rig.rows()} == {ReplicaState.LOADED}
