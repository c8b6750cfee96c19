"""Mirrors that have something else than the registry: left out and named, and the pull goes on."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.oci.blobs import BlobStore
from remuda.oci.client import RegistryClient, open_client
from remuda.oci.errors import ContentRefused
from remuda.oci.fetch import fetch_image
from remuda.oci.model import Platform
from remuda.oci.reference import parse_reference
from remuda.oci.transport import Registries
from tests.integration.oci.conftest import IMPATIENT
from tests.integration.oci.faulty_server import HOST, FaultyServer, faulty_server
from tests.support.images import image, noise_layer

pytestmark = pytest.mark.anyio

AMD64 = Platform("linux", "amd64")
BUILT = image([noise_layer(300_000, 5)])
LAYER = BUILT.layers[0]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


def instead_of(part: str, body: bytes) -> Handler:
    async def before(request: web.Request) -> web.StreamResponse | None:
        return web.Response(body=body) if part in request.path else None

    return before


@asynccontextmanager
async def mirrored(mirror: FaultyServer, registry: FaultyServer) -> AsyncIterator[RegistryClient]:
    """A client that asks the mirror before the registry."""
    names = {f"{HOST}:{registry.port}": (f"{HOST}:{mirror.port}",)}
    registries = Registries(mirrors=names)
    async with open_client(SystemClock(), SeededEntropy(1), registries=registries, retry=IMPATIENT) as client:
        yield client


async def pull(client: RegistryClient, registry: FaultyServer, store: BlobStore) -> bytes:
    found = await client.image(parse_reference(registry.reference), AMD64)
    async with fetch_image(client, found, store) as fetched:
        return (await fetched.layer(0)).read_bytes()


@pytest.mark.parametrize(
    ("part", "body"),
    [
        ("/manifests/", b"<html>welcome to this hotel</html>"),
        (BUILT.config.digest, b"{}"),
        (LAYER.digest, b"x" * len(LAYER.content)),
        (LAYER.digest, LAYER.content[:100_000] + b"x" * (len(LAYER.content) - 100_000)),
        (LAYER.digest, b"too short"),
        (LAYER.digest, LAYER.content + b"too long"),
    ],
)
async def test_a_mirror_with_wrong_bytes_is_named_and_the_registry_asked(
    store: BlobStore, part: str, body: bytes
) -> None:
    async with (
        faulty_server(BUILT, instead_of(part, body)) as mirror,
        faulty_server(BUILT) as registry,
        mirrored(mirror, registry) as client,
    ):
        with capture_logs() as logs:
            assert await pull(client, registry, store) == LAYER.content

        assert f"{HOST}:{mirror.port}" in str([event for event in logs if event["log_level"] == "warning"])
        assert registry.asked("GET", part)
        assert len(registry.requests) == 1  # For the rest the mirror was good enough.


async def test_what_an_earlier_life_fetched_survives_a_mirror_with_another_size(store: BlobStore) -> None:
    partial = store.root / "partial" / LAYER.digest.replace(":", "-")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(LAYER.content[:200_000])
    async with (
        faulty_server(BUILT, instead_of(LAYER.digest, b"too short")) as mirror,
        faulty_server(BUILT) as registry,
        mirrored(mirror, registry) as client,
    ):
        assert await pull(client, registry, store) == LAYER.content

        assert registry.asked("GET", LAYER.digest)[0].headers["Range"] == "bytes=200000-"


async def test_a_registry_that_is_wrong_too_ends_the_pull(store: BlobStore) -> None:
    wrong = instead_of(LAYER.digest, b"x" * len(LAYER.content))
    async with (
        faulty_server(BUILT, wrong) as mirror,
        faulty_server(BUILT, wrong) as registry,
        mirrored(mirror, registry) as client,
    ):
        with pytest.raises(ContentRefused, match="arrived with digest"):
            await pull(client, registry, store)

        asked = [len(server.asked("GET", LAYER.digest)) for server in (mirror, registry)]
        assert asked == [1, 1]
