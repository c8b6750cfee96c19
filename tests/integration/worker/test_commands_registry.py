"""Installs from a real registry: true progress, and what is kept of an install that was given up."""

from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from remuda.wire import subjects
from remuda.wire.backends import (
    BackendCancel,
    BackendCancelReply,
    BackendInstall,
    BackendInstallReply,
    BackendUpgrade,
    BackendUpgradeReply,
)
from tests.support.commands_rig import Rig, rigged
from tests.support.images import BuiltImage, image, layer, noise_layer
from tests.support.registry import RegistryServer, registry_server
from tests.support.trickle import Relay, relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MB = 1_000_000


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
async def link(registry: RegistryServer) -> AsyncIterator[Relay]:
    async with relay(registry.port) as opened:
        yield opened


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged(tmp_path) as made:
        yield made


def backend(version: int) -> BuiltImage:
    own = layer({"run.sh": b"#!/bin/sh\n", "version": b"%d" % version})
    return image([noise_layer(2 * MB, 10), noise_layer(MB, 11), own])


def offer(rig: Rig, registry: RegistryServer, link: Relay, built: BuiltImage, name: str = "echo") -> str:
    """The image under this name in the machine's gallery, reached through the relay."""
    registry.pusher.push(f"commands/{name}", "v1", built)
    reference = f"127.0.0.1:{link.port}/commands/{name}:v1"
    rig.gallery("own", {name: reference})
    return reference


async def test_progress_of_a_pull_is_true_in_phase_bytes_and_percentage(
    rig: Rig, registry: RegistryServer, link: Relay
) -> None:
    """Rows A025, A026."""
    built = backend(1)
    reference = offer(rig, registry, link, built, "told")
    link.bytes_per_s = 2 * MB

    reply = await rig.install(BackendInstall(backend="told", op_id="o-1"))

    events = rig.progress("o-1")
    assert reply.success
    assert {event.phase for event in events} >= {"resolving", "downloading", "starting"}
    assert all(one.overall <= two.overall and one.seq < two.seq for one, two in pairwise(events))
    assert events[-1].overall == 100
    pulling = [event for event in events if event.phase == "downloading"]
    assert all(event.total_bytes == built.size for event in pulling)
    assert all(event.file_name.endswith(reference) for event in pulling)
    assert any(0 < event.current_bytes < built.size for event in pulling)


async def test_cancelled_install_keeps_the_bytes_that_were_verified(
    rig: Rig, registry: RegistryServer, link: Relay
) -> None:
    built = backend(3)
    offer(rig, registry, link, built, "resumed")
    link.bytes_per_s = MB
    replies: list[BackendInstallReply] = []

    async def install() -> None:
        replies.append(await rig.install(BackendInstall(backend="resumed", op_id="o-1")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(install)
        await wait_until(lambda: link.bytes_back > built.size // 3)
        cancelled = await rig.ask(subjects.backend_cancel, BackendCancel(op_id="o-1"), BackendCancelReply)
    link.bytes_per_s = float("inf")
    before = link.bytes_back
    again = await rig.install(BackendInstall(backend="resumed"))

    assert cancelled.cancelled
    assert "cancelled" in replies[0].error
    assert rig.progress("o-1")[-1].current_bytes > built.size // 4
    assert again.success
    assert link.bytes_back - before < built.size * 3 // 4


async def test_identical_installs_from_a_registry_transfer_its_bytes_once(
    rig: Rig, registry: RegistryServer, link: Relay
) -> None:
    built = backend(4)
    offer(rig, registry, link, built, "shared")
    link.bytes_per_s = 2 * MB

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            request = BackendInstall(backend="shared", model_id=f"m{number}", op_id=f"o-{number}")
            tasks.start_soon(rig.install, request)

    assert len(rig.supervision.started) == 4
    assert link.bytes_back < built.size * 5 // 4
    for number in range(4):
        assert any(event.current_bytes > 0 for event in rig.progress(f"o-{number}"))


async def test_upgrade_to_what_is_installed_stops_nothing_unless_it_is_forced_or_did_not_start(
    rig: Rig, registry: RegistryServer, link: Relay
) -> None:
    built = backend(7)
    offer(rig, registry, link, built, "same")
    await rig.install(BackendInstall(backend="same", model_id="m"))
    ours = BackendUpgrade(backend="same", digest=built.manifest.digest, attempt=1)

    async def upgrade(request: BackendUpgrade) -> BackendUpgradeReply:
        return await rig.ask(subjects.backend_upgrade, request, BackendUpgradeReply)

    kept = await upgrade(ours)
    assert (kept.success, kept.unchanged, kept.digest) == (True, True, built.manifest.digest)
    assert (kept.stopped_process_keys, rig.supervision.stopped) == ((), [])

    assert rig.commands.report().stopped == ()
    [running] = rig.commands.report().replicas
    forced = await upgrade(ours.model_copy(update={"force": True}))
    [told] = rig.commands.report().stopped
    assert (told.model_id, told.instance, told.why) == (
        "m",
        running.instance,
        "the upgrade of same stopped it",
    )
    assert (forced.success, forced.unchanged, forced.stopped_process_keys) == (True, False, ("m#0",))

    await rig.install(BackendInstall(backend="same", model_id="m"))
    localai = await upgrade(BackendUpgrade(backend="same", op_id="o-1"))
    assert (localai.unchanged, localai.stopped_process_keys) == (False, ("m#0",))

    await rig.install(BackendInstall(backend="same", model_id="m"))
    await rig.depot.note_failed_start("same", "a library is missing")
    failed = await upgrade(ours)
    assert (failed.unchanged, failed.stopped_process_keys) == (False, ("m#0",))


async def test_upgrade_brings_what_the_tag_is_now(rig: Rig, registry: RegistryServer, link: Relay) -> None:
    offer(rig, registry, link, backend(5), "moved")
    await rig.install(BackendInstall(backend="moved", model_id="m"))
    newer = backend(6)
    registry.pusher.push("commands/moved", "v1", newer)

    reply = await rig.ask(subjects.backend_upgrade, BackendUpgrade(backend="moved"), BackendUpgradeReply)
    await wait_until(lambda: rig.commands.report().installed)

    assert reply.stopped_process_keys == ("m#0",)
    assert (rig.folder("moved") / "version").read_bytes() == b"6"

    def told() -> bool:
        [artifact] = rig.commands.report().installed
        return artifact.digest == artifact.platform_digest == newer.manifest.digest

    await wait_until(told)
