"""backend.upgrade, list, delete and rollback: files and the processes that run from them."""

import json
from collections.abc import Sequence

import anyio
import pytest

from remuda.wire import subjects
from remuda.wire.backends import (
    BackendCancel,
    BackendCancelReply,
    BackendDelete,
    BackendDeleteReply,
    BackendInstall,
    BackendList,
    BackendListReply,
    BackendRollback,
    BackendRollbackReply,
    BackendUpgrade,
    BackendUpgradeReply,
)
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.model import Stopped
from tests.support.commands_rig import RUN, Rig
from tests.support.waiting import wait_until
from tests.unit.worker.commands.traffic import offer

pytestmark = pytest.mark.anyio


async def upgrade(rig: Rig, request: BackendUpgrade) -> BackendUpgradeReply:
    return await rig.ask(subjects.backend_upgrade, request, BackendUpgradeReply)


async def delete(rig: Rig, name: str) -> BackendDeleteReply:
    return await rig.ask(subjects.backend_delete, BackendDelete(backend=name), BackendDeleteReply)


async def rollback(rig: Rig, name: str) -> BackendRollbackReply:
    return await rig.ask(subjects.backend_rollback, BackendRollback(backend=name), BackendRollbackReply)


async def listed(rig: Rig) -> BackendListReply:
    return await rig.ask(subjects.backend_list, BackendList(), BackendListReply)


def run_text(rig: Rig, name: str) -> str:
    return (rig.folder(name) / "run.sh").read_text()


async def test_upgrade_stops_the_backends_processes_replaces_the_files_and_starts_nothing(rig: Rig) -> None:
    """Row A140."""
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="qwen"))
    rig.live("a#1", "echo")
    rig.live("b#0", "other")
    rig.source("echo", RUN + "# newer\n")
    rig.supervision.started.clear()

    reply = await upgrade(rig, BackendUpgrade(backend="echo", op_id="o-1"))

    assert reply == BackendUpgradeReply(
        success=True, stopped_process_keys=("a#1", "qwen#0"), reports_stopped_processes=True
    )
    assert [str(one.key) for one in rig.supervision.replicas()] == ["b#0"]
    assert rig.supervision.started == []
    assert all(not free for _, free in rig.supervision.stopped)
    assert "newer" in run_text(rig, "echo")
    assert rig.progress("o-1")[-1].overall == 100


async def test_upgrade_stops_the_process_of_its_own_key_whatever_runs_there(rig: Rig) -> None:
    rig.offer("echo")
    rig.live("echo#2", "other")

    reply = await upgrade(rig, BackendUpgrade(backend="echo", replica_index=2))

    assert reply.stopped_process_keys == ("echo#2",)


async def test_upgrade_by_a_meta_name_that_is_not_here_yet_stops_what_runs_of_its_build(rig: Rig) -> None:
    offer(rig)
    await rig.install(BackendInstall(backend="build", model_id="qwen"))

    reply = await upgrade(rig, BackendUpgrade(backend="meta"))

    assert (reply.success, reply.stopped_process_keys) == (True, ("qwen#0",))


async def test_upgrade_that_no_gallery_has_stops_nothing(rig: Rig) -> None:
    rig.live("qwen#0", "echo")
    reply = await upgrade(rig, BackendUpgrade(backend="echo"))

    assert not reply.success
    assert reply.stopped_process_keys == ()
    assert rig.supervision.stopped == []


async def test_upgrade_with_a_process_that_cannot_be_stopped_keeps_the_files(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="qwen"))
    rig.supervision.immortal.add(ProcessKey("qwen", 0))
    rig.live("a#0", "echo")
    rig.source("echo", RUN + "# newer\n")

    reply = await upgrade(rig, BackendUpgrade(backend="echo"))

    assert not reply.success
    assert "qwen#0" in reply.error
    assert reply.stopped_process_keys == ("a#0",)
    assert "newer" not in run_text(rig, "echo")


async def test_install_waits_for_an_upgrade_of_the_same_backend_under_its_other_name(rig: Rig) -> None:
    """Row A141: shared by install and upgrade, and by all names of one backend."""
    source = f"file://{rig.source('cpu-echo')}"
    await rig.install(BackendInstall(backend="cpu-echo", uri=source, alias="echo", model_id="m"))
    rig.depot.gates["cpu-echo"] = anyio.Event()
    installed = anyio.Event()

    async def upgrade_slowly() -> None:
        await upgrade(rig, BackendUpgrade(backend="cpu-echo", uri=source, alias="echo"))

    async def install() -> None:
        await rig.install(BackendInstall(backend="echo", model_id="other"))
        installed.set()

    async with anyio.create_task_group() as tasks:
        rig.depot.reached.clear()
        tasks.start_soon(upgrade_slowly)
        await rig.depot.reached["cpu-echo"].wait()
        tasks.start_soon(install)
        await wait_until(lambda: rig.queued("echo") or rig.queued("cpu-echo"))
        assert not installed.is_set()
        rig.depot.gates["cpu-echo"].set()

    assert [str(one.key) for one in rig.supervision.replicas()] == ["other#0"]


async def test_list_tells_what_the_metadata_says(rig: Rig) -> None:
    """Row A151."""
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo"))
    path = rig.folder("echo") / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": "1.2", "digest": "sha256:9f"}))

    [row] = (await listed(rig)).backends

    assert (row.name, row.is_system, row.is_meta) == ("echo", False, False)
    assert (row.version, row.digest) == ("1.2", "sha256:9f")
    assert row.uri.endswith("/sources/echo")
    assert row.gallery_url.endswith("own.yaml")
    assert row.installed_at.endswith("Z")


async def test_list_omits_what_is_only_an_alias_and_shows_the_systems(rig: Rig) -> None:
    system = rig.depot.places.system / "whisper"
    system.mkdir(parents=True)
    (system / "run.sh").write_text(RUN)
    uri = f"file://{rig.source('x')}"
    await rig.install(BackendInstall(backend="cpu-echo", uri=uri, alias="echo"))

    rows = {row.name: row.is_system for row in (await listed(rig)).backends}

    assert rows == {"cpu-echo": False, "whisper": True}


async def test_list_with_unreadable_metadata_is_an_error(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo"))
    (rig.folder("echo") / "metadata.json").write_text("{")

    reply = await listed(rig)

    assert "metadata.json" in reply.error
    assert reply.backends == ()


async def test_delete_stops_gracefully_and_then_removes_the_files(rig: Rig) -> None:
    """Row A150."""
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="qwen"))

    reply = await delete(rig, "echo")

    assert reply == BackendDeleteReply(
        success=True, stopped_process_keys=("qwen#0",), reports_stopped_processes=True
    )
    assert rig.supervision.stopped == [(ProcessKey("qwen", 0), True)]
    assert not rig.folder("echo").exists()


async def test_delete_with_a_process_that_survives_keeps_the_files(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="qwen"))
    rig.supervision.immortal.add(ProcessKey("qwen", 0))

    reply = await delete(rig, "echo")

    assert not reply.success
    assert "qwen#0" in reply.error
    assert reply.stopped_process_keys == ()
    assert rig.folder("echo").exists()


async def test_delete_of_what_is_not_installed_says_so_after_stopping_its_processes(rig: Rig) -> None:
    rig.live("qwen#0", "echo")
    reply = await delete(rig, "echo")

    assert not reply.success
    assert "backend not found" in reply.error
    assert reply.stopped_process_keys == ("qwen#0",)
    assert rig.supervision.replicas() == []


async def test_delete_of_a_meta_backend_removes_its_build(rig: Rig) -> None:
    index = rig.root / "own.yaml"
    index.write_text(
        f"- name: echo\n  capabilities: {{default: cpu-echo}}\n"
        f"- name: cpu-echo\n  uri: file://{rig.source('cpu-echo')}\n"
    )
    installed = await rig.install(BackendInstall(backend="echo", model_id="m"))
    assert installed.success

    reply = await delete(rig, "echo")

    assert reply.success
    assert reply.stopped_process_keys == ("m#0",)
    assert not rig.folder("echo").exists()
    assert not rig.folder("cpu-echo").exists()


async def test_delete_of_a_build_stops_what_was_started_by_its_meta_backends_name(rig: Rig) -> None:
    index = rig.root / "own.yaml"
    index.write_text(
        f"- name: echo\n  capabilities: {{default: cpu-echo}}\n"
        f"- name: cpu-echo\n  uri: file://{rig.source('cpu-echo')}\n"
    )
    await rig.install(BackendInstall(backend="echo", model_id="m"))

    reply = await delete(rig, "cpu-echo")

    assert reply.stopped_process_keys == ("m#0",)


async def test_system_backend_is_not_deleted_and_its_processes_stay(rig: Rig) -> None:
    system = rig.depot.places.system / "whisper"
    system.mkdir(parents=True)
    (system / "run.sh").write_text(RUN)
    rig.live("w#0", "whisper")

    reply = await delete(rig, "whisper")

    assert "system" in reply.error
    assert rig.supervision.stopped == []


@pytest.mark.parametrize("name", ["../sources", "..", "", ".remuda", "/"])
async def test_delete_never_leaves_the_folder_of_backends(rig: Rig, name: str) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo"))

    reply = await delete(rig, name)

    assert not reply.success
    assert rig.source("echo").exists()
    assert rig.folder("echo").exists()


async def test_delete_waits_for_an_install_of_the_same_backend(rig: Rig) -> None:
    rig.offer("echo")
    rig.depot.gates["echo"] = anyio.Event()
    replies: list[BackendDeleteReply] = []

    async def remove() -> None:
        replies.append(await delete(rig, "echo"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.install, BackendInstall(backend="echo", model_id="m"))
        await rig.depot.reached["echo"].wait()
        tasks.start_soon(remove)
        await wait_until(lambda: rig.queued("echo"))
        assert replies == []
        rig.depot.gates["echo"].set()

    assert replies[0].stopped_process_keys == ("m#0",)
    assert not rig.folder("echo").exists()


async def test_delete_that_has_begun_is_not_given_up_half_way(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="qwen"))
    replies: list[BackendDeleteReply] = []
    stop, asked, let = rig.supervision.stop, anyio.Event(), anyio.Event()

    async def slow_stop(keys: Sequence[ProcessKey], *, free: bool) -> Sequence[Stopped]:
        stopped = await stop(keys, free=free)
        asked.set()
        await let.wait()
        return stopped

    async def remove() -> None:
        request = BackendDelete(backend="echo", op_id="o-1")
        replies.append(await rig.ask(subjects.backend_delete, request, BackendDeleteReply))

    rig.supervision.stop = slow_stop  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(remove)
        await asked.wait()
        told = await rig.ask(subjects.backend_cancel, BackendCancel(op_id="o-1"), BackendCancelReply)
        let.set()

    assert (told.success, told.cancelled) == (True, False)
    assert replies[0].success
    assert not rig.folder("echo").exists()


async def test_rollback_returns_to_the_version_before_and_starts_nothing(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="m"))
    rig.source("echo", RUN + "# newer\n")
    await upgrade(rig, BackendUpgrade(backend="echo"))
    rig.live("a#0", "echo")

    reply = await rollback(rig, "echo")

    assert reply == BackendRollbackReply(
        success=True, stopped_process_keys=("a#0",), reports_stopped_processes=True
    )
    assert "newer" not in run_text(rig, "echo")
    assert rig.supervision.replicas() == []


async def test_rollback_without_an_earlier_version_stops_nothing(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="m"))

    reply = await rollback(rig, "echo")

    assert not reply.success
    assert "no earlier version" in reply.error
    assert [str(one.key) for one in rig.supervision.replicas()] == ["m#0"]


async def test_rollback_of_what_is_not_installed_says_so(rig: Rig) -> None:
    reply = await rollback(rig, "nonesuch")

    assert "backend not found" in reply.error
