"""Backends that ship with Remuda: installed like others, nothing fetched, refreshed when it moves."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from remuda import __version__
from remuda.core.clock import SystemClock
from remuda.core.errors import NotFound
from remuda.host.ports import free_port
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.install_spec import InstallSpec
from remuda.worker.depot.layout import DepotLayout, read_metadata, write_metadata
from tests.peers.backend_client import BackendClient, CallFailed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ECHO = InstallSpec("echo", ("builtin:echo",), alias="parrot", gallery_url="builtin:gallery")


def depot_of(places: DepotLayout, python: str = "/opt/remuda/bin/python") -> Depot:
    """It has no client: nothing can be fetched."""
    return Depot(places, SystemClock(), require_integrity=True, python=Path(python))


async def test_a_builtin_is_installed_listed_and_found(places: DepotLayout) -> None:
    depot = depot_of(places)

    done = await depot.install(ECHO)

    assert done.changed
    assert (done.folder / "run.sh").stat().st_mode & 0o777 == 0o755
    told = read_metadata(done.folder)
    assert told is not None
    assert (told.name, told.alias, told.uri) == ("echo", "parrot", "builtin:echo")
    assert (told.version, told.gallery_url) == (__version__, "builtin:gallery")
    assert await depot.run_file("parrot") == done.folder / "run.sh"
    assert not (await depot.install(ECHO, refresh=True)).changed


@pytest.mark.parametrize("builtin", ["echo", "llama-cpp"])
async def test_a_builtin_runs_as_workers_of_others_start_it(places: DepotLayout, builtin: str) -> None:
    folder = (
        await depot_of(places, sys.executable).install(InstallSpec("own", (f"builtin:{builtin}",)))
    ).folder
    with started_by_others(folder) as address:
        await wait_until(partial(healthy, address), within=30)
        with pytest.raises(CallFailed, match="UNAUTHENTICATED"):
            async with BackendClient(address) as stranger:
                await stranger.health()


@contextmanager
def started_by_others(folder: Path) -> Iterator[str]:
    """As the contract has it, in a group of its own; told to end, it ends in spec."""
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    with subprocess.Popen(
        ["run.sh", "--addr", address],
        executable="./run.sh",
        cwd=folder,
        env={**os.environ, "LOCALAI_GRPC_AUTH_TOKEN": "of the fleet"},
        start_new_session=True,
    ) as process:
        try:
            yield address
        finally:
            process.terminate()
    assert process.returncode == 0


async def healthy(address: str) -> bool:
    async with BackendClient(address, "of the fleet") as client:
        try:
            return await client.health() == "OK"
        except CallFailed:
            return False


async def test_a_builtin_of_a_moved_remuda_is_not_current(places: DepotLayout) -> None:
    await depot_of(places, "/old/python").install(ECHO)

    done = await depot_of(places, "/new/python").install(ECHO, refresh=True)

    assert done.changed
    assert "/new/python" in (done.folder / "run.sh").read_text()


async def test_stale_builtins_are_refreshed_and_others_left_alone(places: DepotLayout) -> None:
    await depot_of(places, "/old/python").install(ECHO)
    upgraded = InstallSpec("builtin-llama-cpp", ("builtin:llama-cpp",))
    await depot_of(places, "/new/python").install(upgraded)
    llama = places.installed("builtin-llama-cpp")
    told = read_metadata(llama)
    assert told is not None
    write_metadata(llama, told.model_copy(update={"version": "0.0.1"}))
    other = places.installed("other")
    other.mkdir()
    (other / "run.sh").write_text("#!/bin/sh\n")

    await depot_of(places, "/new/python").refresh_builtins()

    echo = places.installed("echo")
    assert "/new/python" in (echo / "run.sh").read_text()
    refreshed = read_metadata(llama), read_metadata(echo)
    assert [one.version for one in refreshed if one] == [__version__, __version__]
    assert refreshed[1] is not None
    assert refreshed[1].alias == "parrot"
    assert sorted(path.name for path in other.iterdir()) == ["run.sh"]


async def test_a_builtin_that_left_remuda_is_refused_and_spoils_no_start(places: DepotLayout) -> None:
    depot = depot_of(places)
    gone = InstallSpec("engine", ("builtin:engine",))

    with pytest.raises(NotFound, match="does not ship with this Remuda"):
        await depot.install(gone)

    folder = (await depot.install(ECHO)).folder
    told = read_metadata(folder)
    assert told is not None
    write_metadata(folder, told.model_copy(update={"uri": "builtin:engine"}))
    await depot.refresh_builtins()
    assert (await depot.installed()).get("echo") is not None
