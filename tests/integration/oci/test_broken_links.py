"""Links that break, stall and crawl, and registries that answer wrongly: bytes come once or not at all."""

import zlib
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from remuda.core.errors import RemudaError
from remuda.oci.blobs import BlobStore
from remuda.oci.client import RegistryClient
from remuda.oci.errors import ContentRefused, RegistryFailed
from remuda.oci.fetch import FileProgress, fetch_image
from remuda.oci.model import Image, Platform
from remuda.oci.reference import parse_reference
from tests.support.images import BuiltImage, image, noise_layer
from tests.support.registry import RegistryServer
from tests.support.trickle import relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

AMD64 = Platform("linux", "amd64")
MB = 1_000_000


async def resolved(client: RegistryClient, port: int, repository: str) -> Image:
    return await client.image(parse_reference(f"127.0.0.1:{port}/{repository}:v1"), AMD64)


async def fetch(client: RegistryClient, found: Image, store: BlobStore) -> list[bytes]:
    async with fetch_image(client, found, store) as fetched:
        return [path.read_bytes() for path in await fetched.layers()]


def pushed(registry: RegistryServer, repository: str, *sizes: int) -> BuiltImage:
    built = image(
        [noise_layer(size, zlib.crc32(repository.encode()) + number) for number, size in enumerate(sizes)]
    )
    registry.pusher.push(repository, "v1", built)
    return built


async def test_a_link_that_resets_every_few_megabytes_costs_no_byte_twice(
    registry: RegistryServer, client: RegistryClient, store: BlobStore
) -> None:
    built = pushed(registry, "reset/image", 20 * MB, 8 * MB)
    async with relay(registry.port) as link:
        found = await resolved(client, link.port, "reset/image")
        link.reset_after = 5 * MB
        link.bytes_per_s = 20 * MB  # A reset takes along what nobody has read yet.

        layers = await fetch(client, found, store)

        assert layers == [part.content for part in built.layers]
        assert link.bytes_back < 1.15 * built.size


async def test_a_silent_link_is_given_up_and_resumed(
    registry: RegistryServer, client: RegistryClient, store: BlobStore
) -> None:
    built = pushed(registry, "stall/image", 6 * MB)
    async with relay(registry.port) as link:
        found = await resolved(client, link.port, "stall/image")
        link.stall_after = 4 * MB

        layers = await fetch(client, found, store)

        assert layers == [built.layers[0].content]
        assert link.bytes_back < 1.15 * built.size


async def test_a_crawling_link_is_waited_for(
    registry: RegistryServer, client: RegistryClient, store: BlobStore
) -> None:
    built = pushed(registry, "crawl/image", 200_000)
    async with relay(registry.port) as link:
        found = await resolved(client, link.port, "crawl/image")
        link.bytes_per_s = 150_000  # Longer than the patience with silence.

        assert await fetch(client, found, store) == [built.layers[0].content]


async def test_a_link_that_is_busy_is_asked_again(
    registry: RegistryServer, client: RegistryClient, store: BlobStore
) -> None:
    built = pushed(registry, "busy/image", 2 * MB, MB)
    async with relay(registry.port) as link:
        link.busy_next = 2
        found = await resolved(client, link.port, "busy/image")
        assert link.busy_next == 0
        link.busy_next = 1  # Two layers at a time need a second connection.

        assert await fetch(client, found, store) == [part.content for part in built.layers]
        assert link.busy_next == 0


async def test_a_link_that_stays_dead_is_reported(
    registry: RegistryServer, client: RegistryClient, store: BlobStore
) -> None:
    pushed(registry, "dead/image", MB)
    async with relay(registry.port) as link:
        found = await resolved(client, link.port, "dead/image")
        link.reset_after = 0

        with pytest.raises(RegistryFailed, match=rf"127\.0\.0\.1:{link.port}"):
            await fetch(client, found, store)


async def test_cancelling_keeps_what_came(
    registry: RegistryServer, client: RegistryClient, store: BlobStore
) -> None:
    built = pushed(registry, "cancel/image", 8 * MB)
    seen: list[FileProgress] = []
    async with relay(registry.port) as link:
        found = await resolved(client, link.port, "cancel/image")
        link.bytes_per_s = 4 * MB
        async with fetch_image(client, found, store, seen.append):
            await wait_until(lambda: seen and seen[-1].done_bytes > 2 * MB)
        link.bytes_per_s = float("inf")
        assert store.find(built.layers[0].digest) is None

        assert await fetch(client, found, store) == [built.layers[0].content]
        assert link.bytes_back < 1.15 * built.size


async def test_two_pulls_at_once_fetch_a_shared_layer_once(
    registry: RegistryServer, client: RegistryClient, store: BlobStore
) -> None:
    shared, first, second = (noise_layer(size * MB, size) for size in (6, 2, 3))
    registry.pusher.push("shared/one", "v1", image([shared, first]))
    registry.pusher.push("shared/two", "v1", image([shared, second]))
    async with relay(registry.port) as link:
        images = [await resolved(client, link.port, name) for name in ("shared/one", "shared/two")]
        link.bytes_per_s = 12 * MB  # So that they do meet.
        async with anyio.create_task_group() as tasks:
            for found in images:
                tasks.start_soon(fetch, client, found, store)

        once = sum(len(part.content) for part in (shared, first, second))
        assert link.bytes_back < 1.02 * once
    assert {blob.digest for blob in store.listing()} == {part.digest for part in (shared, first, second)}


@pytest.mark.parametrize(
    ("case", "damage", "says"),
    [
        ("truncated", lambda content: content[:-1000], "bytes long; it was promised with"),
        ("overlong", lambda content: content + b"more", "bytes long; it was promised with"),
        ("altered-one", lambda content: b"X" + content[1:], "arrived with digest"),
    ],
)
async def test_bytes_other_than_promised_are_refused_by_name(
    registry: RegistryServer,
    registry_folder: Path,
    client: RegistryClient,
    store: BlobStore,
    case: str,
    damage: Callable[[bytes], bytes],
    says: str,
) -> None:
    built = pushed(registry, f"damaged/{case}", 1_000_000)
    digest = built.layers[0].digest
    path = registry.blob_path(registry_folder, digest)
    path.write_bytes(damage(built.layers[0].content))
    found = await resolved(client, registry.port, f"damaged/{case}")

    with pytest.raises(ContentRefused, match=says) as refused:
        await fetch(client, found, store)

    assert digest in str(refused.value)
    assert store.listing() == []


async def test_a_damaged_partial_is_fetched_anew(
    registry: RegistryServer, client: RegistryClient, store: BlobStore
) -> None:
    built = pushed(registry, "powercut/image", MB)
    found = await resolved(client, registry.port, "powercut/image")
    partial = store.root / "partial" / built.layers[0].digest.replace(":", "-")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"\0" * 500_000)

    assert await fetch(client, found, store) == [built.layers[0].content]


async def test_a_failure_reaches_whoever_waits_for_any_layer(
    registry: RegistryServer, registry_folder: Path, client: RegistryClient, store: BlobStore
) -> None:
    built = pushed(registry, "onefails/image", 4 * MB, MB)
    registry.blob_path(registry_folder, built.layers[1].digest).unlink()
    async with relay(registry.port) as link:
        found = await resolved(client, link.port, "onefails/image")
        link.bytes_per_s = MB

        with pytest.raises(RemudaError, match=built.layers[1].digest):
            async with fetch_image(client, found, store) as fetched:
                await fetched.layer(0)
