"""Passes over a real store and a bus in memory, with workers that do as they are told."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import anyio
import pytest
from structlog.testing import capture_logs

from remuda.core.errors import StoreUnusable
from remuda.core.ids import NodeId
from remuda.fleet.ports import Note
from remuda.ops.commander import Timeouts
from remuda.ops.failures import START_FAILED
from remuda.ops.model import Kind, OpId, RollOut, State, StepPolicy, Wish
from remuda.store.fleet import SqlFleetStore
from remuda.wire.backends import (
    BackendCancelReply,
    BackendDeleteReply,
    BackendInstallReply,
    BackendRollbackReply,
    BackendUpgradeReply,
)
from remuda.wire.codec import Message
from remuda.wire.nodes import Work
from tests.support.clocks import HostClock
from tests.support.fleet_tables import fresh_database
from tests.support.memory_bus import MemoryBroker
from tests.support.ops_rig import BUILD, ScriptedWorker, done, ops_frontend, worker
from tests.support.virtual_loop import run_virtually
from tests.support.virtual_ops import Recorder, World, after, connected, time_passes, virtually

AS_SHIPPED = StepPolicy()


async def never(payload: bytes) -> Message | None:
    await anyio.sleep_forever()
    return None


async def until_state(world: World, state: State, op: str = "op-1", within_s: float = 100_000) -> None:
    with anyio.fail_after(within_s):
        while (await world.frontend.step(op)).state is not state:
            await time_passes(within_s / 1000)


async def reporting(world: World, node: str = "reporting-1") -> ScriptedWorker:
    return await worker(world.worker.bus, world.database, node, reports=True)


def test_an_install_is_sent_and_its_reply_ends_it() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", done)
        await world.frontend.submit([world.worker.node])
        await until_state(world, State.SUCCEEDED, within_s=5)
        assert (await world.frontend.step()).attempt == 1

    virtually(test, reconciles=True)


@pytest.mark.parametrize("kind", [Kind.INSTALL, Kind.UPGRADE])
def test_slow_work_on_a_worker_without_reports_is_never_a_failure(kind: Kind) -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(2700, BackendInstallReply(success=True)))
        await world.worker.on("backend.upgrade", after(2700, BackendUpgradeReply(success=True)))
        await world.worker.on("backend.list", world.worker.list_installed)
        await world.frontend.submit([world.worker.node], kind)
        await time_passes(1800)
        step = await world.frontend.step()
        assert (step.state, step.attempt, step.failures) == (State.RUNNING, 1, 0)
        await until_state(world, State.SUCCEEDED)
        assert (await world.frontend.step()).attempt == 1

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_a_reply_that_is_lost_on_the_workers_side_is_made_up_for_by_its_list() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", never)
        await world.worker.on("backend.list", world.worker.list_installed)
        await world.frontend.submit([world.worker.node])
        await time_passes(100)
        assert (await world.frontend.step()).state is State.RUNNING
        world.worker.installed = [BUILD]
        await until_state(world, State.SUCCEEDED, within_s=40)
        assert (world.worker.times("backend.install"), (await world.frontend.step()).attempt) == (1, 1)

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_a_list_is_asked_for_at_a_slow_pace() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", never)
        await world.worker.on("backend.list", world.worker.list_installed)
        await world.frontend.submit([world.worker.node])
        await time_passes(600)
        assert 18 <= world.worker.times("backend.list") <= 21

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_the_configured_timeout_is_when_a_worker_becomes_overdue() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.upgrade", never)
        await world.worker.on("backend.list", world.worker.list_installed)
        await world.frontend.submit([world.worker.node], Kind.UPGRADE)
        await time_passes(6)
        assert world.worker.times("backend.list") == 0
        await time_passes(6)
        assert world.worker.times("backend.list") == 1

    virtually(test, reconciles=True, timeouts=Timeouts(upgrade=timedelta(seconds=7)))


def test_a_restarted_worker_without_reports_is_retried_at_once() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", never)
        await world.frontend.submit([world.worker.node])
        await time_passes(5)
        await world.worker.restart()
        await time_passes(40)
        step = await world.frontend.step()
        assert (step.attempt, world.worker.times("backend.install")) == (2, 2)

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_a_restarted_worker_that_reports_is_retried_and_its_old_reply_waited_for_no_more() -> None:
    async def test(world: World) -> None:
        node = await reporting(world)
        await node.on("backend.install", never)
        await world.frontend.submit([node.node])
        await time_passes(5)
        await node.restart()
        await time_passes(5)
        await node.report()
        await time_passes(40)
        assert {key[2] for key in world.frontend.commander.awaited} == {2}

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_what_a_report_shows_at_work_goes_on_for_hours_and_ends_with_the_report() -> None:
    async def test(world: World) -> None:
        node = await reporting(world)
        await node.on("backend.install", never)
        await world.frontend.submit([node.node])
        for _ in range(180):
            await time_passes(20)
            await node.report([Work(op_id="op-1", attempt=1, kind="install")])
        step = await world.frontend.step()
        assert (step.state, step.attempt, step.failures) == (State.RUNNING, 1, 0)
        node.installed = [BUILD]
        await node.report()
        await until_state(world, State.SUCCEEDED, within_s=70)  # For a minute its reply may still come.

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_a_failure_that_its_workers_report_overtakes_does_not_end_well() -> None:
    """The files are in place, and the report says so before the reply says that they do not start."""

    async def test(world: World) -> None:
        node = await reporting(world)

        async def install(payload: bytes) -> Message:
            await time_passes(50)
            node.installed = [BUILD]
            await node.report()
            await time_passes(10)
            return BackendInstallReply(error="it ended with exit code 1", code=START_FAILED)

        await node.on("backend.install", install)
        await world.frontend.submit([node.node])
        for _ in range(2):
            await time_passes(20)
            await node.report([Work(op_id="op-1", attempt=1, kind="install")])
        await time_passes(25)
        step = await world.frontend.step()
        assert step.problem is not None
        assert (step.state, step.problem.code) == (State.PENDING, START_FAILED)

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_fifty_nodes_take_as_long_as_the_slowest() -> None:
    async def test(world: World) -> None:
        nodes = []
        for number in range(50):
            node = await worker(world.worker.bus, world.database, f"many-{number}", reports=False)
            await node.on("backend.install", after(1 + number / 5, BackendInstallReply(success=True)))
            nodes.append(node.node)
        began = anyio.current_time()
        await world.frontend.submit(nodes)
        with anyio.fail_after(100):
            while any(step.state is not State.SUCCEEDED for step in await world.frontend.steps()):
                await time_passes(0.3)
        assert anyio.current_time() - began < 1.1 * 10.8

    virtually(test, reconciles=True)


def test_a_node_that_never_answers_holds_nobody_up() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", never)
        quick = await worker(world.worker.bus, world.database, "quick", reports=False)
        await quick.on("backend.install", done)
        await world.frontend.submit([world.worker.node, quick.node])
        await time_passes(5)
        states = {step.node: step.state for step in await world.frontend.steps()}
        assert states == {world.worker.node: State.RUNNING, quick.node: State.SUCCEEDED}

    virtually(test, reconciles=True)


def test_hard_failures_are_bounded_and_then_wait_for_a_person() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(0, BackendInstallReply(error="no such image")))
        await world.frontend.submit([world.worker.node])
        await until_state(world, State.FAILED)
        step = await world.frontend.step()
        assert (step.attempt, world.worker.times("backend.install")) == (10, 10)
        assert step.reason == "the install failed: no such image"

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_an_outage_of_the_bus_costs_no_attempt() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", done)
        world.broker.stop()
        await time_passes(1)
        await world.frontend.submit([world.worker.node])
        await time_passes(1800)
        step = await world.frontend.step()
        assert (step.state, step.attempt) == (State.PENDING, 0)
        assert "the bus is down" in step.reason
        world.broker.start()
        await until_state(world, State.SUCCEEDED, within_s=30)

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_cancelling_reaches_the_worker_and_ends_the_step() -> None:
    async def test(world: World) -> None:
        node = await reporting(world)
        told = anyio.Event()

        async def install(payload: bytes) -> Message:
            await told.wait()
            return BackendInstallReply(error="the install was cancelled")

        async def cancel(payload: bytes) -> Message:
            told.set()
            return BackendCancelReply(success=True, cancelled=True)

        await node.on("backend.install", install)
        await node.on("backend.cancel", cancel)
        op = await world.frontend.submit([node.node])
        await time_passes(5)
        await world.frontend.store.wish(op, Wish.CANCEL)
        world.frontend.signal.notify()
        await until_state(world, State.CANCELLED, within_s=5)
        assert node.times("backend.cancel") == 1

    virtually(test, reconciles=True)


def test_work_that_nobody_wants_any_more_is_cancelled_when_its_node_returns() -> None:
    async def test(world: World) -> None:
        node = await reporting(world)
        await node.on("backend.cancel", after(0, BackendCancelReply(success=True, cancelled=True)))
        await node.report([Work(op_id="forgotten", attempt=1)])
        world.frontend.signal.notify()
        await time_passes(70)
        assert node.times("backend.cancel") >= 1
        await node.report()
        await time_passes(40)
        heard = node.times("backend.cancel")
        await time_passes(100)
        assert node.times("backend.cancel") == heard

    virtually(test, reconciles=True)


def test_a_report_that_lags_behind_the_reply_is_no_unwanted_work() -> None:
    async def test(world: World) -> None:
        node = await reporting(world)
        await node.on("backend.cancel", after(0, BackendCancelReply(success=True)))
        await node.on("backend.install", done)
        await node.report([Work(op_id="op-1", attempt=1)])
        await world.frontend.submit([node.node])
        await until_state(world, State.SUCCEEDED, within_s=5)
        await node.report()
        await time_passes(60)
        assert node.times("backend.cancel") == 0

    virtually(test, reconciles=True)


def test_a_step_of_a_removed_node_ends() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", never)
        await world.frontend.submit([world.worker.node])
        await time_passes(5)
        await SqlFleetStore(world.database).remove(world.worker.node, Note("removed"))
        await until_state(world, State.CANCELLED, within_s=10)
        assert (await world.frontend.step()).reason == "the node was removed from the fleet"

    virtually(test, reconciles=True)


def test_a_canary_that_does_not_start_goes_back_and_stops_the_roll_out() -> None:
    async def test(world: World) -> None:
        first, second = await reporting(world, "a"), await reporting(world, "b")
        for node in (first, second):
            await node.on("backend.upgrade", after(1, BackendUpgradeReply(success=True)))
            await node.on("backend.install", after(1, BackendInstallReply(error="exit 1")))
            await node.on("backend.rollback", after(1, BackendRollbackReply(success=True)))
        nodes = [first.node, second.node]
        roll_out = RollOut(at_once=1, canary=True, proves=True)
        await world.frontend.submit(nodes, Kind.UPGRADE, roll_out=roll_out, proves=True, rolls_back=True)
        await time_passes(60)
        states = {step.node: step.state for step in await world.frontend.steps()}
        assert states == {first.node: State.FAILED, second.node: State.CANCELLED}
        assert (first.times("backend.rollback"), second.heard) == (1, [])

    virtually(test, reconciles=True)


def test_a_new_install_waits_until_the_removal_it_replaces_is_over() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.delete", after(30, BackendDeleteReply(success=True)))
        await world.worker.on("backend.install", done)
        await world.frontend.submit([world.worker.node], Kind.REMOVE)
        await time_passes(5)
        await world.frontend.submit([world.worker.node], op="op-2")
        await until_state(world, State.SUCCEEDED, op="op-2")
        assert world.worker.heard[0][0] == "backend.delete"

    virtually(test, reconciles=True)


# The shell itself.


def test_a_pass_that_fails_is_logged_and_counted_and_followed_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", done)
        live, troubles = world.frontend.store.live, [StoreUnusable("down")]

        async def failing() -> object:
            if troubles:
                raise troubles.pop()
            return await live()

        await world.frontend.submit([world.worker.node])
        monkeypatch.setattr(world.frontend.store, "live", failing)
        world.frontend.signal.notify()
        await until_state(world, State.SUCCEEDED, within_s=30)
        assert world.frontend.reconciler.failed_passes == 1

    virtually(test, reconciles=True)


def test_one_line_is_logged_per_attempt_that_ends_and_none_while_nothing_changes() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(600, BackendInstallReply(success=True)))
        await world.worker.on("backend.list", world.worker.list_installed)
        with capture_logs() as lines:
            await world.frontend.submit([world.worker.node])
            await until_state(world, State.SUCCEEDED)
        assert [line["event"] for line in lines] == ["dispatched", "attempt_ended"]

    virtually(test, reconciles=True)


def two_frontends(test: Callable[[World, World], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = HostClock()
        broker, (database, _) = MemoryBroker(clock), fresh_database(clock)
        async with (
            connected(broker, clock, "one") as one,
            connected(broker, clock, "other") as other,
            connected(broker, clock, "worker") as theirs,
        ):
            node = await worker(theirs, database, reports=False)
            async with (
                ops_frontend(one, database, clock, name="one") as first,
                ops_frontend(other, database, clock, name="other") as second,
            ):
                await test(
                    World(first, node, Recorder(one), broker, database),
                    World(second, node, Recorder(other), broker, database),
                )

    run_virtually(main)


def test_a_wish_recorded_on_one_frontend_wakes_the_other() -> None:
    async def test(one: World, other: World) -> None:
        changed = other.frontend.signal.changed
        one.frontend.signal.notify()
        with anyio.fail_after(2):
            await changed.wait()
        assert changed.is_set()

    two_frontends(test)


def test_progress_reaches_the_store_for_those_who_join_later() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(60, BackendInstallReply(success=True)))
        await world.frontend.submit([world.worker.node])
        await time_passes(2)
        await world.worker.tell("op-1", seq=1, overall=40.0, phase="downloading")
        await time_passes(3)
        ((node, progress),) = (await world.frontend.store.view(OpId("op-1"))).progress
        assert (node, progress.fraction, progress.phase) == (NodeId("node-1"), 0.4, "downloading")

    virtually(test, reconciles=True)
