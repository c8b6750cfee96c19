"""A new version in the place of another: what runs goes on until the new one is complete."""

import shutil

import anyio
import pytest

from remuda.wire import subjects
from remuda.wire.backends import (
    BackendCancel,
    BackendCancelReply,
    BackendInstall,
    BackendUpgrade,
    BackendUpgradeReply,
)
from remuda.worker.depot.layout import Metadata, read_metadata, write_metadata
from tests.support.commands_rig import RUN, Rig
from tests.unit.worker.commands.traffic import offer

pytestmark = pytest.mark.anyio


async def upgrade(rig: Rig, request: BackendUpgrade) -> BackendUpgradeReply:
    return await rig.ask(subjects.backend_upgrade, request, BackendUpgradeReply)


def run_text(rig: Rig, name: str) -> str:
    return (rig.folder(name) / "run.sh").read_text()


@pytest.mark.parametrize("backend", ["build", "meta"])
async def test_upgrade_whose_files_cannot_be_fetched_stops_nothing(rig: Rig, backend: str) -> None:
    offer(rig)
    await rig.install(BackendInstall(backend=backend, model_id="qwen"))
    shutil.rmtree(rig.source("build"))

    reply = await upgrade(rig, BackendUpgrade(backend=backend))

    assert not reply.success
    assert (reply.stopped_process_keys, reply.reports_stopped_processes) == ((), True)
    assert rig.supervision.stopped == []
    assert run_text(rig, "build") == RUN


async def test_upgrade_to_something_that_is_no_backend_stops_nothing(rig: Rig) -> None:
    rig.offer("echo")
    rig.live("qwen#0", "echo")
    (rig.source("echo") / "run.sh").unlink()

    reply = await upgrade(rig, BackendUpgrade(backend="echo"))

    assert "run.sh" in reply.error
    assert reply.stopped_process_keys == ()
    assert rig.supervision.stopped == []
    assert not rig.depot.places.names_in("staging")


@pytest.mark.parametrize("backend", ["build", "meta"])
async def test_upgrade_stops_processes_once_the_new_files_are_complete(rig: Rig, backend: str) -> None:
    offer(rig)
    await rig.install(BackendInstall(backend=backend, model_id="qwen"))
    rig.source("build", RUN + "# newer\n")
    seen: list[tuple[str, str]] = []

    async def look() -> None:
        staged = rig.depot.places.staging("build") / "run.sh"
        seen.append((run_text(rig, "build"), staged.read_text()))

    rig.supervision.before_stop = look
    reply = await upgrade(rig, BackendUpgrade(backend=backend))

    assert (reply.success, reply.stopped_process_keys) == (True, ("qwen#0",))
    assert seen == [(RUN, RUN + "# newer\n")]
    assert run_text(rig, "build") == RUN + "# newer\n"


async def test_same_bytes_from_another_reference_change_only_where_upgrades_ask(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="qwen"))
    digest, v1, latest = f"sha256:{'0' * 64}", "registry.example/me/x:v1", "registry.example/me/x:latest"
    write_metadata(rig.folder("echo"), Metadata(name="echo", alias="e", uri=v1, digest=digest))
    text, changes = run_text(rig, "echo"), rig.changes

    reply = await rig.install(BackendInstall(backend="echo", name="echo", uri=latest, digest=digest))

    known = read_metadata(rig.folder("echo"))
    assert reply.success
    assert known is not None
    assert (known.uri, known.digest, known.alias, reply.digest) == (latest, digest, "e", digest)
    assert (len(rig.depot.installs), len(rig.supervision.started)) == (1, 1), "those of the beginning"
    assert rig.supervision.stopped == []
    assert run_text(rig, "echo") == text
    assert rig.changes > changes, "it is reported"

    await rig.install(BackendInstall(backend="echo", name="echo", uri=f"oci://{latest}", digest=digest))
    assert read_metadata(rig.folder("echo")) == known, "the same reference in full"


async def test_upgrade_cancelled_while_it_fetches_stops_nothing(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="qwen"))
    rig.depot.reached.clear()
    rig.depot.gates["echo"] = anyio.Event()
    replies: list[BackendUpgradeReply] = []

    async def upgrade_slowly() -> None:
        replies.append(await upgrade(rig, BackendUpgrade(backend="echo", op_id="o-1")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(upgrade_slowly)
        await rig.depot.reached["echo"].wait()
        await rig.ask(subjects.backend_cancel, BackendCancel(op_id="o-1"), BackendCancelReply)

    assert "cancelled" in replies[0].error
    assert replies[0].stopped_process_keys == ()
    assert rig.supervision.stopped == []


async def test_upgrade_that_stops_processes_has_gone_too_far_to_be_cancelled(rig: Rig) -> None:
    """Else they would be gone for nothing."""
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="qwen"))
    rig.source("echo", RUN + "# newer\n")
    answers: list[BackendCancelReply] = []

    async def cancel() -> None:
        request = BackendCancel(op_id="o-1")
        answers.append(await rig.ask(subjects.backend_cancel, request, BackendCancelReply))

    rig.supervision.before_stop = cancel
    reply = await upgrade(rig, BackendUpgrade(backend="echo", op_id="o-1"))

    assert answers == [BackendCancelReply(success=True, cancelled=False)]
    assert (reply.success, reply.stopped_process_keys) == (True, ("qwen#0",))
    assert "newer" in run_text(rig, "echo")


@pytest.mark.parametrize("backend", ["build", "meta"])
async def test_forced_install_whose_files_cannot_be_fetched_stops_nothing(rig: Rig, backend: str) -> None:
    offer(rig)
    await rig.install(BackendInstall(backend=backend, model_id="qwen"))
    shutil.rmtree(rig.source("build"))

    reply = await rig.install(BackendInstall(backend=backend, model_id="qwen", force=True))

    assert not reply.success
    assert rig.supervision.stopped == []
    assert (rig.folder("build") / "run.sh").read_text() == RUN
    assert not rig.depot.places.names_in("staging")


async def test_install_from_another_source_that_cannot_be_fetched_stops_nothing(rig: Rig) -> None:
    first = BackendInstall(backend="mine", uri=f"file://{rig.source('v1')}", name="mine")
    await rig.install(first)

    reply = await rig.install(first.model_copy(update={"uri": f"file://{rig.root / 'gone'}"}))

    assert not reply.success
    assert rig.supervision.stopped == []
    assert [str(one.key) for one in rig.supervision.replicas()] == ["mine#0"]


async def test_forced_install_stops_processes_once_the_new_files_are_complete(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="qwen"))
    rig.source("echo", RUN + "# newer\n")
    seen: list[tuple[str, str]] = []

    async def look() -> None:
        folders = rig.folder("echo"), rig.depot.places.staging("echo")
        installed, staged = ((folder / "run.sh").read_text() for folder in folders)
        seen.append((installed, staged))

    rig.supervision.before_stop = look
    reply = await rig.install(BackendInstall(backend="echo", model_id="qwen", force=True))

    assert reply.success
    assert seen == [(RUN, RUN + "# newer\n")]
    assert (rig.folder("echo") / "run.sh").read_text() == RUN + "# newer\n"
