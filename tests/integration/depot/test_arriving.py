"""Layers are unpacked while they arrive, and whatever bytes arrive, only verified ones are installed."""

from collections.abc import Awaitable, Callable

import anyio
import pytest
from aiohttp import web

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.oci.client import open_client
from remuda.oci.errors import ContentRefused
from remuda.oci.transport import Registries
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.install_spec import spec_from_source
from remuda.worker.depot.layout import DepotLayout
from tests.integration.depot.conftest import IMPATIENT, LINUX
from tests.integration.oci.faulty_server import HOST, faulty_server
from tests.support.images import Blob, image, layer, noise
from tests.support.registry import RegistryServer
from tests.support.trickle import relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

RUN = b"#!/bin/sh\n"
GOOD = layer({"run.sh": RUN, "lib/first": noise(300_000, 1), "lib/second": noise(3_000_000, 2)})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


def instead_of(blob: Blob, content: bytes) -> Handler:
    async def before(request: web.Request) -> web.StreamResponse | None:
        return web.Response(body=content) if blob.digest in request.path else None

    return before


async def test_files_are_there_before_their_layer_is(registry: RegistryServer, depot: Depot) -> None:
    registry.pusher.push("arriving/slow", "v1", image([GOOD]))
    staged = depot.places.staging("slow")
    async with relay(registry.port) as link:
        spec = spec_from_source(f"{HOST}:{link.port}/arriving/slow:v1", "slow")
        link.bytes_per_s = 1_000_000
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(depot.install, spec)

            await wait_until((staged / "lib" / "first").exists, within=10, what="the first file")

            assert link.bytes_back < len(GOOD.content)
            assert (await depot.installed()).backends == ()
            link.bytes_per_s = 100_000_000

    assert (depot.places.installed("slow") / "lib" / "second").read_bytes() == noise(3_000_000, 2)


async def test_a_silent_link_does_not_hold_up_cancelling(registry: RegistryServer, depot: Depot) -> None:
    registry.pusher.push("arriving/silent", "v1", image([GOOD]))
    async with relay(registry.port) as link:
        spec = spec_from_source(f"{HOST}:{link.port}/arriving/silent:v1", "silent")
        link.stall_after = 1_000_000
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(depot.install, spec)
                started = depot.places.staging("silent") / "lib" / "first"
                await wait_until(started.exists, within=8, what="the first file")
                tasks.cancel_scope.cancel()

    assert not depot.places.staging("silent").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(noise(len(GOOD.content), 9), id="no archive"),
        pytest.param(GOOD.content[:1_000_000] + bytes(len(GOOD.content) - 1_000_000), id="damaged"),
        pytest.param(layer({"run.sh": b"other", "evil": b"here"}).content, id="another image's layer"),
    ],
)
async def test_wrong_bytes_of_a_mirror_leave_no_trace(places: DepotLayout, wrong: bytes) -> None:
    built = image([GOOD])
    async with faulty_server(built, instead_of(GOOD, wrong)) as mirror, faulty_server(built) as origin:
        registries = Registries(mirrors={f"{HOST}:{origin.port}": (f"{HOST}:{mirror.port}",)})
        async with open_client(
            SystemClock(), SeededEntropy(1), registries=registries, retry=IMPATIENT
        ) as client:
            depot = Depot(places, SystemClock(), client, LINUX)

            done = await depot.install(spec_from_source(origin.reference, "mirrored"))

    assert sorted(path.name for path in done.folder.iterdir()) == [
        ".remuda.json",
        "lib",
        "metadata.json",
        "run.sh",
    ]
    assert (done.folder / "lib" / "second").read_bytes() == noise(3_000_000, 2)


async def test_an_archive_with_another_digest_is_not_installed(places: DepotLayout) -> None:
    other = layer({"run.sh": RUN, "evil": noise(1_000_000, 3)}, "")
    promised = layer({"run.sh": RUN, "good": noise(1_000_000, 4)}, "")
    assert len(other.content) == len(promised.content)
    async with (
        faulty_server(image([promised]), instead_of(promised, other.content)) as origin,
        open_client(SystemClock(), SeededEntropy(1), retry=IMPATIENT) as client,
    ):
        depot = Depot(places, SystemClock(), client, LINUX)
        with pytest.raises(ContentRefused, match="arrived with digest"):
            await depot.install(spec_from_source(origin.reference, "wrong"))

        assert (await depot.installed()).backends == ()
    assert not places.staging("wrong").exists()
