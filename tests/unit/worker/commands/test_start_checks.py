"""Whether what was installed starts, and what becomes of it if it does not."""

import shutil

import pytest

from remuda.wire import subjects
from remuda.wire.backends import (
    BackendDelete,
    BackendDeleteReply,
    BackendInstall,
    BackendInstallReply,
)
from remuda.wire.process_keys import ProcessKey
from tests.support.commands_rig import Rig

pytestmark = pytest.mark.anyio


async def test_process_that_does_not_become_ready_fails_the_install(rig: Rig) -> None:
    rig.offer("echo")
    rig.supervision.fails = "it ended with code 1: libcuda.so is missing"

    reply = await rig.install(BackendInstall(backend="echo"))

    assert not reply.success
    assert "libcuda" in reply.error
    assert not (rig.folder("echo") / ".remuda-proven").exists()


async def test_version_that_does_not_start_makes_way_for_the_one_that_has_run(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="a"))
    (rig.folder("echo") / "good").touch()
    rig.supervision.fails = "it ended with code 1: libcuda.so is missing"

    reply = await rig.install(BackendInstall(backend="echo", digest="sha256:" + "0" * 64))

    assert (reply.success, reply.code) == (False, "rolled_back")
    assert "libcuda" in reply.error
    assert "the version before is in use again" in reply.error
    assert (rig.folder("echo") / "good").exists()
    assert await rig.depot.has_started("echo")


async def test_version_that_was_switched_in_before_a_restart_makes_way_as_well(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="a"))
    (rig.folder("echo") / "good").touch()
    proven, earlier = rig.folder("echo"), rig.depot.places.previous("echo")
    earlier.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(proven, earlier)
    (proven / ".remuda-proven").unlink()  # As the worker leaves it that is killed while the new one starts.
    (proven / "good").unlink()
    rig.supervision.table.clear()
    rig.supervision.fails = "it ended with code 1"

    reply = await rig.install(BackendInstall(backend="echo"))

    assert (reply.success, reply.code) == (False, "rolled_back")
    assert (rig.folder("echo") / "good").exists()


async def test_version_that_does_not_start_stays_where_none_before_it_has_run(rig: Rig) -> None:
    rig.offer("echo")
    rig.supervision.fails = "it ended with code 1"
    for digest in ("", "sha256:" + "0" * 64):
        reply = await rig.install(BackendInstall(backend="echo", digest=digest))
        assert (reply.success, reply.code) == (False, "start_failed")


async def test_version_that_has_run_is_marked(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo"))

    assert (rig.folder("echo") / ".remuda-proven").exists()


async def test_server_is_proven_with_the_model_that_it_ran_last(rig: Rig) -> None:
    rig.offer("engine")
    rig.http_backends.add("engine")
    served = BackendInstall(backend="engine", model_id="m", model_path="org/m", options=("a:1",))
    await rig.install(served)
    await rig.install(BackendInstall(backend="engine", prove=True))

    launch = rig.supervision.started[-1]
    assert launch.key == ProcessKey("engine", 0)
    asked = rig.recipes_asked[-1]
    assert (asked.model_id, asked.model_path, asked.options) == ("m", "org/m", ("a:1",))

    await rig.ask(subjects.backend_delete, BackendDelete(backend="engine"), BackendDeleteReply)
    assert await rig.depot.last_start("engine") is None


async def test_install_starts_a_server_once_to_see_that_it_starts_and_ends_it(rig: Rig) -> None:
    rig.offer("engine")
    rig.http_backends.add("engine")
    rig.supervision.fails = "engine did not start: it ended with exit code 3"
    reply = await rig.install(BackendInstall(backend="engine"))
    assert (reply.success, reply.code) == (False, "start_failed")

    rig.supervision.fails = ""
    for unchanged in (False, True):
        reply = await rig.install(BackendInstall(backend="engine"))
        assert reply == BackendInstallReply(success=True, unchanged=unchanged)
    assert len(rig.supervision.started) == 2, "once it has started there is nothing to see"
    assert rig.supervision.table == {}


async def test_server_that_a_model_did_not_start_with_is_not_blamed(rig: Rig) -> None:
    rig.offer("engine")
    rig.http_backends.add("engine")
    await rig.install(BackendInstall(backend="engine"))
    rig.supervision.fails = "engine could not be started for m: no such file"
    await rig.install(BackendInstall(backend="engine", model_id="m"))
    assert await rig.depot.has_started("engine")


async def test_proof_says_so_when_there_is_nothing_to_start(rig: Rig) -> None:
    rig.offer("engine")
    rig.http_backends.add("engine")
    rig.needs_model.add("engine")
    gone = rig.root / "gone.gguf"
    gone.touch()
    await rig.install(BackendInstall(backend="engine", model_id="m", model_path=str(gone)))
    gone.unlink()

    reply = await rig.install(BackendInstall(backend="engine", prove=True))

    assert reply.success
    assert "nothing to start it with" in reply.unproven
    assert (await rig.install(BackendInstall(backend="engine"))).unproven == ""


async def test_install_says_that_nothing_could_be_started(rig: Rig) -> None:
    rig.offer("engine")
    rig.http_backends.add("engine")
    rig.needs_model.add("engine")
    reply = await rig.install(BackendInstall(backend="engine"))
    assert (reply.success, "has no `check`" in reply.unproven) == (True, True)
    await rig.install(BackendInstall(backend="engine", model_id="m"))
    assert (await rig.install(BackendInstall(backend="engine"))).unproven == ""
