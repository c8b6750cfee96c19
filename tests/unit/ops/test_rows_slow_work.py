"""Slow and silent workers: what is concluded from a missing reply, a list, or nothing at all."""

from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from remuda.core.errors import BusRefused, BusUnusable, PeerFailed, RemudaError, StoreUnusable
from remuda.core.ids import BootId, NodeId
from remuda.ops import op_views
from remuda.ops.model import AttemptKey, Kind, Observation, OpId, Outcome, Stage, State, Verb, Wish
from remuda.ops.ports import View
from remuda.ops.steps import advance
from remuda.wire.backends import (
    BackendDeleteReply,
    BackendInstallReply,
    BackendListReply,
    BackendUpgradeReply,
    InstallProgress,
)
from tests.support.ops_rig import BUILD, done, worker
from tests.support.virtual_ops import World, after, begun, outcome, send, settled, time_passes, virtually
from tests.unit.ops.build import BOOT, NOW, a_step, an_operation, at, running

LATE = NOW - timedelta(seconds=1)


# What a missing reply means.


@pytest.mark.parametrize(
    ("trouble", "fails"),
    [
        (PeerFailed("no answer in time"), False),
        (BusUnusable("the connection was lost"), False),
        (BusRefused("not allowed"), True),
    ],
)
def test_a009_only_a_refusal_is_a_failure_a_timeout_and_a_lost_connection_are_none(
    monkeypatch: pytest.MonkeyPatch, trouble: RemudaError, fails: bool
) -> None:
    async def test(world: World) -> None:
        async def request(*what: object, on_gap: object = None) -> bytes:
            raise trouble

        monkeypatch.setattr(type(world.lines), "request", request)
        await send(world, await begun(world), Verb.INSTALL)
        await settled(world)
        assert (await outcome(world) is not None) is fails

    virtually(test)


@pytest.mark.parametrize("kind", Kind)
def test_a008_a092_every_kind_of_slow_work_is_shown_as_running_on_its_worker(kind: Kind) -> None:
    assert op_views.node_status(running(kind, answer_by=LATE), NOW) == "running_on_worker"


def test_a015_only_the_nodes_that_are_overdue_are_shown_as_running_on_their_worker() -> None:
    steps = (a_step(node="done", state=State.SUCCEEDED), running(node="slow", answer_by=LATE))
    nodes = op_views.node_items(View(an_operation(), steps, 1), NOW)
    assert [node.node_name for node in nodes if node.status == "running_on_worker"] == ["name-of-slow"]
    assert [node.error for node in nodes] == ["", ""]


def test_a016_a_failed_node_is_told_at_once_and_outranks_slow_ones_at_the_end() -> None:
    failed = a_step(node="bad", state=State.FAILED, reason="disk full")
    slow = running(node="slow", answer_by=LATE)
    meanwhile = View(an_operation(), (failed, slow), 1)
    [item] = op_views.operation_items([meanwhile], NOW)
    assert (item.error, op_views.job(meanwhile).processed) == ("name-of-bad: disk full", False)
    over = op_views.job(View(an_operation(), (failed, replace(slow, state=State.SUCCEEDED)), 2))
    assert (over.processed, over.completed, over.error) == (True, False, "name-of-bad: disk full")


# What a list proves.


@pytest.mark.parametrize(
    ("kind", "ends"), [(Kind.INSTALL, True), (Kind.UPGRADE, False), (Kind.REMOVE, False)]
)
def test_a020_presence_in_a_list_ends_an_install_and_neither_an_upgrade_nor_a_removal(
    kind: Kind, ends: bool
) -> None:
    overdue = running(kind, answer_by=LATE, wait_until=NOW + timedelta(hours=2))
    seen = Observation(boot=BOOT, reports=False, installed=True)
    step, _ = advance(overdue, seen, Wish.RUN, at())
    assert (step.state is State.SUCCEEDED) is ends
    assert step.state.final is ends


def test_a022_a_list_that_cannot_be_stored_is_a_warning_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.list", world.worker.list_installed)
        world.worker.installed = [BUILD]
        store, note = world.frontend.store, world.frontend.store.note_inventory
        failures = [StoreUnusable("down")]

        async def flaky(*what: object) -> None:
            if failures:
                raise failures.pop()
            await note(*what)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "note_inventory", flaky)
        asked = [(world.worker.node, BootId("node-1-boot-1"))]
        with capture_logs() as lines:
            await world.frontend.inventories.refresh(asked)
        assert [(line["event"], line["log_level"]) for line in lines] == [("backends_not_listed", "warning")]
        await world.frontend.inventories.refresh(asked)
        [listed] = await store.inventories()
        assert [one.name for one in listed.backends] == [BUILD]

    virtually(test)


def test_a082_a_node_whose_list_is_an_error_is_left_out_and_the_others_are_listed() -> None:
    async def test(world: World) -> None:
        other = await worker(world.worker.bus, world.database, "node-2", reports=False)
        silent = await worker(world.worker.bus, world.database, "node-3", reports=False)
        other.installed = [BUILD]
        await world.worker.on("backend.list", after(0, BackendListReply(error="disk unreadable")))
        await other.on("backend.list", other.list_installed)
        nodes = [(one.node, BootId(f"{one.node}-boot-1")) for one in (world.worker, other, silent)]
        await world.frontend.inventories.refresh(nodes)
        assert [listed.node for listed in await world.frontend.store.inventories()] == ["node-2"]

    virtually(test)


def test_a023_where_nothing_is_under_way_no_list_is_asked_for() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.list", world.worker.list_installed)
        await time_passes(3600)
        assert world.worker.heard == []

    virtually(test, reconciles=True)


# Progress.


@pytest.mark.parametrize("reply", [BackendInstallReply(success=True), BackendInstallReply(error="no room")])
def test_a033_events_after_the_reply_reach_nobody(
    monkeypatch: pytest.MonkeyPatch, reply: BackendInstallReply
) -> None:
    async def test(world: World) -> None:
        heard: list[int] = []

        def hear(key: AttemptKey, event: InstallProgress, at_s: float) -> None:
            heard.append(event.seq)

        monkeypatch.setattr(world.frontend.board, "hear", hear)
        await world.worker.on("backend.install", after(5, reply))
        await send(world, await begun(world), Verb.INSTALL)
        await time_passes(1)
        await world.worker.tell("op-1", seq=1)
        await settled(world)
        await world.worker.tell("op-1", seq=2)
        await time_passes(1)
        assert heard == [1]

    virtually(test)


@pytest.mark.parametrize(("verb", "stage"), [(Verb.REMOVE, Stage.APPLY), (Verb.ROLL_BACK, Stage.ROLL_BACK)])
def test_a034_a042_work_that_has_no_progress_is_not_listened_to(verb: Verb, stage: Stage) -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.delete", after(0, BackendDeleteReply(success=True)))
        await world.worker.on("backend.rollback", after(0, BackendDeleteReply(success=True)))
        await send(world, replace(await begun(world, Kind.REMOVE), stage=stage), verb)
        await settled(world)
        assert await outcome(world) == Outcome(1)
        assert not [subject for _, subject in world.lines.calls if subject.endswith("progress")]

    virtually(test)


def test_a038_a_silent_worker_installs_without_a_tick_and_without_an_error() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(60, BackendInstallReply(success=True)))
        op = await world.frontend.submit([world.worker.node])
        await time_passes(30)
        view = await world.frontend.store.view(op)
        [node] = op_views.node_items(view, (await world.frontend.store.live()).now)
        assert (node.status, node.total, node.error) == ("downloading", "", "")
        await time_passes(40)
        step = await world.frontend.step()
        assert (step.state, step.attempt, step.problem) == (State.SUCCEEDED, 1, None)

    virtually(test, reconciles=True)


def test_a036_a_slow_store_does_not_keep_ticks_of_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        async def endless(*what: object) -> None:
            await time_passes(1e6)

        monkeypatch.setattr(world.frontend.store, "note_progress", endless)
        await world.worker.on("backend.install", after(100, BackendInstallReply(success=True)))
        await send(world, await begun(world), Verb.INSTALL)
        for seq in (1, 2, 3):
            await time_passes(5)
            await world.worker.tell("op-1", seq=seq, overall=seq * 10.0)
        await time_passes(1)
        live = world.frontend.board.of(OpId("op-1"), world.worker.node)
        assert live is not None
        assert live.fraction == 0.3

    virtually(test)


def test_a167_an_upgrade_shows_progress_like_an_install() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.upgrade", after(10, BackendUpgradeReply(success=True)))
        await send(world, await begun(world, Kind.UPGRADE), Verb.UPGRADE)
        await time_passes(1)
        await world.worker.tell("op-1", seq=1, overall=40.0, phase="downloading")
        await time_passes(1)
        live = world.frontend.board.of(OpId("op-1"), world.worker.node)
        assert live is not None
        assert (live.fraction, live.phase) == (0.4, "downloading")

    virtually(test)


# One node's trouble.


def test_d1_39_a_defect_in_one_attempt_is_logged_and_no_other_attempt_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        other = await worker(world.worker.bus, world.database, "node-2", reports=False)
        await other.on("backend.install", done)
        ask = type(world.lines).request

        async def request(
            lines: object, subject: str, payload: bytes, limit: timedelta, *, on_gap: object = None
        ) -> bytes:
            if subject.startswith("nodes.node-1."):
                raise ZeroDivisionError
            return await ask(world.lines, subject, payload, limit)

        monkeypatch.setattr(type(world.lines), "request", request)
        with capture_logs() as lines:
            await world.frontend.submit([NodeId("node-1"), NodeId("node-2")])
            await time_passes(5)
        states = {step.node: step.state for step in await world.frontend.steps()}
        assert states == {"node-1": State.RUNNING, "node-2": State.SUCCEEDED}
        assert [line["node"] for line in lines if line["event"] == "dispatch_broke"] == ["node-1"]

    virtually(test, reconciles=True)
