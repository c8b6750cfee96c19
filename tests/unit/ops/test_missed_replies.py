"""The bus goes away while workers without reports are at it: what ends their work, what is still heard."""

import anyio
import pytest

from remuda.core.ids import BootId
from remuda.ops.model import Kind, OpId, State, StepPolicy
from remuda.wire.backends import BackendInstallReply, BackendListReply, BackendUpgradeReply, InstalledBackend
from remuda.wire.codec import Message
from tests.support.ops_rig import BUILD, done
from tests.support.virtual_ops import World, after, begun, time_passes, virtually

OP = OpId("op-1")
AS_SHIPPED = StepPolicy()


async def ends(world: World, state: State, within_s: float) -> None:
    with anyio.fail_after(within_s):
        while (await world.frontend.step()).state is not state:
            await time_passes(1)


def test_a_list_ends_an_install_whose_reply_was_missed() -> None:
    async def test(world: World) -> None:
        async def install(payload: bytes) -> Message:
            await time_passes(30)
            world.worker.installed.append(BUILD)
            return BackendInstallReply(success=True)

        await world.worker.on("backend.install", install)
        await world.worker.on("backend.list", world.worker.list_installed)
        await world.frontend.submit([world.worker.node])
        await time_passes(20)
        world.broker.cut("front")  # Nobody is told.
        await time_passes(20)
        world.broker.mend("front")
        await ends(world, State.SUCCEEDED, within_s=90)
        assert (await world.frontend.step()).attempt == 1
        assert world.worker.times("backend.install") == 1

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_a_list_with_a_new_installation_ends_an_upgrade_whose_reply_was_missed() -> None:
    async def test(world: World) -> None:
        installed_at = ["2026-02-01T10:00:00Z"]

        async def list_installed(payload: bytes) -> Message:
            return BackendListReply(
                backends=(InstalledBackend(name=BUILD, installed_at=installed_at[-1]),),
            )

        async def upgrade(payload: bytes) -> Message:
            await time_passes(30)
            installed_at.append("2026-02-02T10:00:00Z")
            return BackendUpgradeReply(success=True)

        await world.worker.on("backend.upgrade", upgrade)
        await world.worker.on("backend.list", list_installed)
        await world.frontend.inventories.refresh([(world.worker.node, BootId("node-1-boot-1"))])
        await world.frontend.submit([world.worker.node], Kind.UPGRADE)
        await time_passes(20)
        world.broker.cut("front")  # Nobody is told.
        await time_passes(20)
        world.broker.mend("front")
        await ends(world, State.SUCCEEDED, within_s=90)
        assert (await world.frontend.step()).reason.endswith(
            f"a new installation of {BUILD}; its reply was lost"
        )
        assert world.worker.times("backend.upgrade") == 1

    virtually(test, reconciles=True, policy=AS_SHIPPED)


@pytest.mark.parametrize(("takes_s", "tells"), [(50, False), (200, True)])
def test_an_install_that_goes_on_through_a_restart_of_the_bus_is_asked_for_once(
    takes_s: int, tells: bool
) -> None:
    """Its worker's list does not show it yet. It is about to end, or its worker tells how far it is."""

    async def test(world: World) -> None:
        async def install(payload: bytes) -> Message:
            for second in range(0, takes_s, 10):
                if tells:
                    await world.worker.tell(OP, seq=second + 1, overall=float(second) / takes_s)
                await time_passes(10)
            world.worker.installed.append(BUILD)
            return BackendInstallReply(success=True)

        await world.worker.on("backend.install", install)
        await world.worker.on("backend.list", world.worker.list_installed)
        await world.frontend.submit([world.worker.node])
        await time_passes(25)
        world.broker.stop()
        await time_passes(1)
        world.broker.start()
        await ends(world, State.SUCCEEDED, within_s=takes_s + 30)
        assert world.worker.times("backend.install") == 1
        assert (await world.frontend.step()).attempt == 1

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_an_install_that_its_worker_knows_nothing_of_is_asked_for_again_soon() -> None:
    async def test(world: World) -> None:
        async def second_time(payload: bytes) -> Message | None:
            return await done(payload) if world.worker.times("backend.install") > 1 else None

        await world.worker.on("backend.install", second_time)
        await world.worker.on("backend.list", world.worker.list_installed)
        await world.frontend.submit([world.worker.node])
        await time_passes(5)
        world.broker.stop()
        world.broker.start()
        await ends(world, State.SUCCEEDED, within_s=120)
        step = await world.frontend.step()
        assert (step.attempt, step.failures) == (2, 0)

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_a_reply_after_everybodys_reconnect_counts_and_progress_is_heard_again() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(600, BackendInstallReply(success=True)))
        await world.worker.on("backend.upgrade", after(600, BackendInstallReply(success=True)))
        await world.worker.on("backend.list", world.worker.list_installed)
        world.worker.installed.append(BUILD)
        await world.frontend.submit([world.worker.node], Kind.UPGRADE)
        await time_passes(20)
        world.broker.stop()
        await time_passes(5)
        world.broker.start()
        await time_passes(20)
        await world.worker.tell(OP, seq=1, overall=40.0)
        await time_passes(2)
        heard = world.frontend.board.of(OP, world.worker.node)
        assert heard is not None
        assert heard.fraction == 0.4
        await ends(world, State.SUCCEEDED, within_s=600)
        assert world.worker.times("backend.upgrade") == 1

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_a_frontend_hears_of_progress_that_another_life_of_it_asked_for() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.list", world.worker.list_installed)
        await begun(world)  # Committed, and sent by nobody who is here.
        await time_passes(10)
        await world.worker.tell(OP, seq=1, overall=40.0)
        await time_passes(2)
        assert world.frontend.board.of(OP, world.worker.node) is not None

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_progress_that_another_life_asked_for_is_stored_once_that_has_stored_nothing_for_a_while() -> None:
    async def test(world: World) -> None:
        step = await begun(world, Kind.UPGRADE)  # Committed, and sent by nobody who is here.
        await time_passes(5)
        await world.worker.tell(OP, seq=1, overall=40.0)
        await time_passes(5)
        assert not (await world.frontend.store.view(OP)).progress, "its own frontend may still write it"
        await time_passes(10)
        await world.worker.tell(OP, seq=2, overall=50.0)
        await time_passes(20)
        [(_, kept)] = (await world.frontend.store.view(OP)).progress
        assert (kept.attempt, kept.fraction) == (step.attempt, 0.5)

    virtually(test, reconciles=True, policy=AS_SHIPPED)


def test_progress_is_subscribed_to_as_soon_as_the_bus_allows_it() -> None:
    async def test(world: World) -> None:
        world.lines.refuses_subscriptions = True
        await world.worker.on("backend.install", after(300, BackendInstallReply(success=True)))
        await world.frontend.submit([world.worker.node])
        await time_passes(20)
        world.lines.refuses_subscriptions = False
        await time_passes(20)
        await world.worker.tell(OP, seq=1, overall=40.0)
        await time_passes(2)
        assert world.frontend.board.of(OP, world.worker.node) is not None

    virtually(test, reconciles=True, policy=AS_SHIPPED)
