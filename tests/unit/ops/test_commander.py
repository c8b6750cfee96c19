"""What is sent, in which order, and what is made of what comes back."""

import json
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from remuda.core.errors import Problem, StoreUnusable
from remuda.core.ids import NodeId
from remuda.ops.commander import Timeouts
from remuda.ops.model import Goal, Kind, OpId, Outcome, Source, Stage, Step, StepPolicy, Verb
from remuda.ops.planning import attempts_at_work
from remuda.wire.backends import (
    BackendDelete,
    BackendDeleteReply,
    BackendInstallReply,
    BackendRollbackReply,
    BackendUpgradeReply,
)
from remuda.wire.codec import Message, decode
from tests.support.ops_rig import done, worker
from tests.support.virtual_ops import (
    World,
    after,
    begun,
    outcome,
    send,
    settled,
    time_passes,
    virtually,
)
from tests.unit.ops.build import running


class NotedReplicas:
    """Implements ops.ports.ModelWork."""

    def __init__(self) -> None:
        self.stopped: list[tuple[str, tuple[str, ...], int]] = []
        self.installed: list[tuple[str, str, float]] = []

    async def carry_out(self, step: Step) -> Problem | None:
        raise AssertionError("nobody asks for that here")

    async def latest_change(self) -> int:
        return 7

    def backend_installed(self, node: NodeId, backend: str, seconds: float) -> None:
        self.installed.append((node, backend, seconds))

    async def forget_stopped(self, node: NodeId, keys: Collection[str], known: int) -> None:
        self.stopped.append((node, tuple(keys), known))
        raise StoreUnusable("the store is away")


_TOLD: dict[str, Any] = {"stopped_process_keys": ("qwen#0", "qwen#1"), "reports_stopped_processes": True}


@pytest.mark.parametrize(
    ("kind", "verb", "subject", "reply"),
    [
        (Kind.UPGRADE, Verb.UPGRADE, "backend.upgrade", BackendUpgradeReply(success=True, **_TOLD)),
        (Kind.UPGRADE, Verb.UPGRADE, "backend.upgrade", BackendUpgradeReply(error="no room", **_TOLD)),
        (Kind.REMOVE, Verb.REMOVE, "backend.delete", BackendDeleteReply(success=True, **_TOLD)),
        (Kind.UPGRADE, Verb.ROLL_BACK, "backend.rollback", BackendRollbackReply(success=True, **_TOLD)),
    ],
)
def test_processes_that_a_worker_stopped_for_a_change_are_forgotten(
    kind: Kind, verb: Verb, subject: str, reply: Message
) -> None:
    replicas = NotedReplicas()

    async def test(world: World) -> None:
        await world.worker.on(subject, after(1, reply))
        await send(world, await begun(world, kind), verb)
        await settled(world)
        assert replicas.stopped[0] == ("node-1", ("qwen#0", "qwen#1"), 7)
        assert await outcome(world) is not None, "though the store did not take it"

    virtually(test, model_work=replicas)


def test_list_of_stopped_processes_that_is_not_authoritative_says_nothing() -> None:
    replicas = NotedReplicas()

    async def test(world: World) -> None:
        reply = BackendUpgradeReply(success=True, stopped_process_keys=("qwen#0",))
        await world.worker.on("backend.upgrade", after(1, reply))
        await send(world, await begun(world, Kind.UPGRADE), Verb.UPGRADE)
        await settled(world)
        assert replicas.stopped == []

    virtually(test, model_work=replicas)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (BackendInstallReply(success=True), True),
        (BackendInstallReply(success=True, unchanged=True), False),
        (BackendInstallReply(error="no room"), False),
    ],
)
def test_how_long_an_install_took_is_told_if_it_was_one(reply: BackendInstallReply, told: bool) -> None:
    replicas = NotedReplicas()

    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(5, reply))
        step = await begun(world)
        await send(world, step, Verb.INSTALL)
        await settled(world)
        assert [(node, backend) for node, backend, _ in replicas.installed] == (
            [("node-1", step.source.backend)] if told else []
        )
        assert all(4.5 <= seconds <= 5.5 for _, _, seconds in replicas.installed)

    virtually(test, model_work=replicas)


def test_progress_is_subscribed_to_before_the_request_is_sent() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", done)
        await send(world, await begun(world), Verb.INSTALL)
        await settled(world)
        own = [kind for kind, subject in world.lines.calls if subject.startswith("nodes.")]
        assert own == ["subscribe", "request", "unsubscribe"]

    virtually(test)


def test_many_requests_share_one_subscription_which_ends_with_the_last_of_them() -> None:
    async def test(world: World) -> None:
        nodes = [world.worker.node]
        await world.worker.on("backend.install", after(5, BackendInstallReply(success=True)))
        for number in range(2, 6):
            other = await worker(world.worker.bus, world.database, f"node-{number}", reports=False)
            await other.on("backend.install", after(number, BackendInstallReply(success=True)))
            nodes.append(other.node)
        await world.frontend.submit(nodes)
        await time_passes(60)
        own = [kind for kind, subject in world.lines.calls if subject.endswith(("install", "progress"))]
        assert own == ["subscribe", *["request"] * 5, "unsubscribe"]

    virtually(test, reconciles=True)


def test_a_subscription_that_fails_is_a_warning_and_the_install_goes_on() -> None:
    async def test(world: World) -> None:
        world.lines.refuses_subscriptions = True
        await world.worker.on("backend.install", done)
        step = await begun(world)
        with capture_logs() as lines:
            await send(world, step, Verb.INSTALL)
            await settled(world)
        assert [line["log_level"] for line in lines if line["event"] == "progress_not_subscribed"] == [
            "warning"
        ]
        assert await outcome(world) == Outcome(1)

    virtually(test)


@pytest.mark.parametrize("reply", [BackendInstallReply(success=True), BackendInstallReply(error="no room")])
def test_nothing_is_listened_to_after_the_reply_whatever_it_says(reply: Message) -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(5, reply))
        await send(world, await begun(world), Verb.INSTALL)
        await time_passes(1)
        await world.worker.tell("op-1", seq=1, overall=30.0)
        await settled(world)
        await world.worker.tell("op-1", seq=2, overall=90.0)
        await time_passes(1)
        live = world.frontend.board.of(OpId("op-1"), world.worker.node)
        assert live is not None
        assert (live.fraction, live.ended) == (0.3, True)

    virtually(test)


def test_malformed_progress_is_dropped_quietly() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(5, BackendInstallReply(success=True)))
        await send(world, await begun(world), Verb.INSTALL)
        await time_passes(1)
        with capture_logs() as lines:
            await world.worker.bus.publish("nodes.node-1.backend.install.op-1.progress", b"x")
            await settled(world)
        assert lines == []
        assert await outcome(world) == Outcome(1)

    virtually(test)


def test_the_reply_alone_decides_and_a_full_bar_does_not() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(5, BackendInstallReply(error="bad image")))
        await send(world, await begun(world), Verb.INSTALL)
        await time_passes(1)
        await world.worker.tell("op-1", seq=1, overall=100.0)
        await settled(world)
        found = await outcome(world)
        assert found is not None
        assert isinstance(found.ending, Problem)
        assert found.ending.code == "install_failed"

    virtually(test)


def test_a_reply_that_comes_after_the_timeout_still_counts() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(3600, BackendInstallReply(success=True)))
        await send(world, await begun(world), Verb.INSTALL)
        await time_passes(1800)
        assert await outcome(world) is None
        await settled(world)
        assert await outcome(world) == Outcome(1)

    virtually(test)


def test_an_overdue_request_takes_nobodys_place() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(3600, BackendInstallReply(success=True)))
        await send(world, await begun(world), Verb.INSTALL)
        assert world.frontend.commander.room == 0
        await time_passes(901)
        assert (world.frontend.commander.room, len(world.frontend.commander.awaited)) == (1, 1)

    virtually(test, at_once_max=1)


def test_nobody_waits_for_a_reply_that_nobody_would_use() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(3600, BackendInstallReply(success=True)))
        step = await begun(world)
        await send(world, step, Verb.INSTALL)
        await time_passes(1)
        world.frontend.commander.keep(attempts_at_work([step]))
        await time_passes(1)
        assert world.frontend.commander.awaited
        world.frontend.commander.keep(attempts_at_work([replace(step, attempt=2)]))
        await time_passes(1)
        assert not world.frontend.commander.awaited

    virtually(test)


def test_a_connection_lost_in_between_says_nothing_about_the_attempt() -> None:
    async def test(world: World) -> None:
        world.lines.breaks_requests = True
        await send(world, await begun(world), Verb.INSTALL)
        await settled(world)
        assert await outcome(world) is None

    virtually(test)


@pytest.mark.parametrize("verb", [Verb.INSTALL, Verb.REMOVE, Verb.ROLL_BACK])
def test_no_responders_means_unreachable_and_may_be_retried(verb: Verb) -> None:
    async def test(world: World) -> None:
        await send(world, await begun(world), verb)
        await settled(world)
        found = await outcome(world)
        assert found is not None
        assert isinstance(found.ending, Problem)
        assert (found.ending.code, found.ending.retryable) == ("no_responders", True)
        assert len([call for call in world.lines.calls if call[0] == "request"]) == 1

    virtually(test)


# Upgrades and workers that do not know them.


def test_an_upgrade_falls_back_to_a_forced_install_once_and_says_so() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", done)
        step = await begun(world, Kind.UPGRADE, digest="sha256:x")
        with capture_logs() as lines:
            await send(world, step, Verb.UPGRADE)
            await settled(world)
        assert [line["event"] for line in lines].count("upgrade_fell_back_to_forced_install") == 1
        ((_, payload),) = world.worker.heard
        body = json.loads(payload)
        assert (body["force"], body["op_id"], body["digest"]) == (True, "op-1", "sha256:x")
        assert await outcome(world) == Outcome(1)

    virtually(test)


def test_a_fallback_that_fails_is_a_failure_and_says_that_it_was_one() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(0, BackendInstallReply(error="no room")))
        await send(world, await begun(world, Kind.UPGRADE), Verb.UPGRADE)
        await settled(world)
        found = await outcome(world)
        assert found is not None
        assert isinstance(found.ending, Problem)
        assert found.ending.code == "install_failed"
        assert found.ending.message == (
            "the install failed: no room (by a forced install, for an older worker)"
        )

    virtually(test)


def test_a_fallback_that_nobody_hears_either_is_unreachable() -> None:
    async def test(world: World) -> None:
        await send(world, await begun(world, Kind.UPGRADE), Verb.UPGRADE)
        await settled(world)
        asked = [subject for kind, subject in world.lines.calls if kind == "request"]
        assert asked == ["nodes.node-1.backend.upgrade", "nodes.node-1.backend.install"]
        found = await outcome(world)
        assert found is not None
        assert isinstance(found.ending, Problem)
        assert found.ending.code == "no_responders"

    virtually(test)


def test_other_failures_of_an_upgrade_are_passed_on_without_a_fallback() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.upgrade", after(0, BackendUpgradeReply(error="bad image")))
        await world.worker.on("backend.install", done)
        await send(world, await begun(world, Kind.UPGRADE), Verb.UPGRADE)
        await settled(world)
        assert world.worker.times("backend.install") == 0
        found = await outcome(world)
        assert found is not None
        assert isinstance(found.ending, Problem)
        assert found.ending.message == "the upgrade failed: bad image"

    virtually(test)


def test_a_slow_forced_install_is_waited_for_like_any_other() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(3600, BackendInstallReply(success=True)))
        await send(world, await begun(world, Kind.UPGRADE), Verb.UPGRADE)
        await time_passes(1800)
        assert await outcome(world) is None
        await settled(world)
        assert await outcome(world) == Outcome(1)

    virtually(test)


# Removals, proofs, cancelling.


def test_what_was_not_found_under_any_name_counts_as_gone() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.delete", after(0, BackendDeleteReply(error="backend not found: x")))
        await send(world, await begun(world, Kind.REMOVE), Verb.REMOVE)
        await settled(world)
        assert world.worker.times("backend.delete") == 2
        assert await outcome(world) == Outcome(1)

    virtually(test)


def test_a_removal_removes_every_build_that_is_there() -> None:
    async def test(world: World) -> None:
        disk = {"cpu-llama-cpp", "cuda12-llama-cpp", "other"}

        async def delete(payload: bytes) -> Message:
            name = decode(BackendDelete, payload).backend
            if name not in disk:
                return BackendDeleteReply(error=f"backend not found: {name}")
            disk.remove(name)
            return BackendDeleteReply(success=True)

        await world.worker.on("backend.delete", delete)
        names = Goal(("cpu-llama-cpp", "cuda12-llama-cpp", "llama-cpp"))
        step = replace(await begun(world, Kind.REMOVE), goal=names, source=Source("cpu-llama-cpp"))
        await send(world, step, Verb.REMOVE)
        await settled(world)
        assert await outcome(world) == Outcome(1)
        assert disk == {"other"}

    virtually(test)


def test_a_removal_that_failed_is_no_success() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.delete", after(0, BackendDeleteReply(error="a process survived")))
        await send(world, await begun(world, Kind.REMOVE), Verb.REMOVE)
        await settled(world)
        found = await outcome(world)
        assert found is not None
        assert isinstance(found.ending, Problem)
        assert found.ending.code == "remove_failed"

    virtually(test)


@pytest.mark.parametrize(
    ("reply", "stops"), [(BackendInstallReply(success=True, address="gpu-1:50052"), 1), (None, 0)]
)
def test_a_proof_stops_what_it_started_and_nothing_if_it_started_nothing(
    reply: Message | None, stops: int
) -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.stop", after(0, BackendInstallReply()))
        await world.worker.on("backend.install", after(0, reply or BackendInstallReply(error="crashed")))
        step = replace(await begun(world, Kind.UPGRADE), stage=Stage.PROVE)
        await send(world, step, Verb.PROVE)
        await settled(world)
        await time_passes(1)
        assert world.worker.times("backend.stop") == stops

    virtually(test)


def test_a_worker_that_cannot_be_told_to_stop_is_no_trouble() -> None:
    async def test(world: World) -> None:
        step = await begun(world)
        with capture_logs() as lines:
            await send(world, step, Verb.CANCEL)
            await time_passes(20)
        assert [line["event"] for line in lines] == ["cancel_not_delivered"]
        assert await outcome(world) is None

    virtually(test)


# The store.


def test_a_reply_is_kept_until_the_store_can_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", done)
        step = await begun(world)
        store, take = world.frontend.store, world.frontend.store.answer
        failures = [StoreUnusable("down"), StoreUnusable("down")]

        async def answer(*what: object) -> None:
            if failures:
                raise failures.pop()
            await take(*what)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "answer", answer)
        await send(world, step, Verb.INSTALL)
        await settled(world)
        assert await outcome(world) == Outcome(1)

    virtually(test)


def test_progress_is_written_at_most_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", after(20, BackendInstallReply(success=True)))
        written: list[object] = []

        async def note(*what: object) -> None:
            written.append(what)

        monkeypatch.setattr(world.frontend.store, "note_progress", note)
        await send(world, await begun(world), Verb.INSTALL)
        for seq in range(1, 101):
            await time_passes(0.1)
            await world.worker.tell("op-1", seq=seq, overall=float(seq))
        assert 4 <= len(written) <= 5

    virtually(test)


def test_each_kind_of_request_has_its_own_timeout() -> None:
    timeouts = Timeouts(install=timedelta(seconds=7), upgrade=timedelta(seconds=8))
    policy = partial(timeouts.policy, policy=StepPolicy())
    assert policy(running()).answer == timedelta(seconds=7)
    assert policy(running(Kind.UPGRADE)).answer == timedelta(seconds=8)
    assert policy(running(Kind.REMOVE)).answer == timedelta(minutes=2)
    assert Timeouts().install == Timeouts().upgrade == timedelta(minutes=15)


def test_a_source_outside_the_galleries_reaches_the_worker() -> None:
    async def test(world: World) -> None:
        await world.worker.on("backend.install", done)
        source = Source("mine", uri="oci://r.example/x:1", name="mine", alias="short")
        await send(world, await begun(world, source=source), Verb.INSTALL)
        await settled(world)
        body = json.loads(world.worker.heard[0][1])
        assert (body["uri"], body["name"], body["alias"]) == ("oci://r.example/x:1", "mine", "short")

    virtually(test)
