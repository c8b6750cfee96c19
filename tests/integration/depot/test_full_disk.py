"""A disk that is full in the middle. Needs the right to mount one."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from remuda.core.clock import SystemClock
from remuda.oci.blobs import BlobStore
from remuda.oci.client import RegistryClient
from remuda.oci.errors import DiskFull
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.install_spec import spec_from_source
from remuda.worker.depot.layout import DepotLayout
from tests.integration.depot.conftest import LINUX
from tests.integration.oci.faulty_server import faulty_server
from tests.integration.oci.test_mirrors import mirrored, pull
from tests.support.images import image, layer, noise_layer
from tests.support.registry import RegistryServer
from tests.support.trickle import relay

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk"),
]

MB = 1_000_000


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True, timeout=10)


def places_on(disk: Path) -> DepotLayout:
    return DepotLayout(disk / "backends", disk / "system", disk / "depot")


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk))
    except subprocess.CalledProcessError:
        pytest.skip("this container may not mount")
    monkeypatch.setattr("remuda.oci.limits.MARGIN_BYTES_MIN", 0)
    yield disk
    subprocess.run(["umount", str(disk)], check=True, timeout=10)


async def test_a_full_disk_is_told_with_numbers_and_resumed_once_there_is_room(
    registry: RegistryServer, client: RegistryClient, small_disk: Path
) -> None:
    swollen = layer({"zeros": bytes(40 * MB), "run.sh": b"#!/bin/sh\n"})  # Hardly anything, until unpacked.
    built = image([noise_layer(4 * MB, 1), swollen])
    registry.pusher.push("depot/swollen", "v1", built)
    depot = Depot(places_on(small_disk), SystemClock(), client, LINUX)

    async with relay(registry.port) as link:
        spec = spec_from_source(f"127.0.0.1:{link.port}/depot/swollen:v1", "swollen")
        with pytest.raises(DiskFull, match=r"is full: .* are free, and .* unpacked before"):
            await depot.install(spec)
        assert (await depot.installed()).backends == ()
        assert depot.places.names_in("staging") == []
        fetched = link.bytes_back
        mount("-o", "remount,size=80m", str(small_disk))

        await depot.install(spec)

        assert link.bytes_back - fetched < 5_000
    assert [one.name for one in (await depot.installed()).reported] == ["swollen"]


async def test_an_image_that_cannot_fit_is_refused_before_its_first_byte(
    registry: RegistryServer, client: RegistryClient, small_disk: Path
) -> None:
    built = image([noise_layer(15 * MB, 2), layer({"run.sh": b"#!/bin/sh\n"})])
    registry.pusher.push("depot/wide", "v1", built)
    depot = Depot(places_on(small_disk), SystemClock(), client, LINUX)

    async with relay(registry.port) as link:
        spec = spec_from_source(f"127.0.0.1:{link.port}/depot/wide:v1", "wide")
        with pytest.raises(
            DiskFull,
            match=r"needs 28\.6 MiB, and 1\.4 MiB more to stay free, .* where 24\.0 MiB are free",
        ):
            await depot.install(spec)

        assert link.bytes_back < 5_000


async def test_a_disk_that_fills_up_is_no_reason_to_ask_other_mirrors(small_disk: Path) -> None:
    built = image([noise_layer(2 * MB, 3)])
    digest = built.layers[0].digest

    async def fill(request: web.Request) -> web.StreamResponse | None:
        if digest in request.path:
            free = shutil.disk_usage(small_disk).free
            (small_disk / "something-else").write_bytes(bytes(free))
        return None

    async with (
        faulty_server(built, fill) as mirror,
        faulty_server(built) as registry,
        mirrored(mirror, registry) as client,
    ):
        with pytest.raises(DiskFull):
            await pull(client, registry, BlobStore(small_disk / "store"))

        assert [len(server.asked("GET", digest)) for server in (mirror, registry)] == [1, 0]
