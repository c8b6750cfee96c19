"""Pulling from a real registry: names, platforms, packings."""

from pathlib import Path

import pytest

from remuda.core.errors import NotFound
from remuda.oci.blobs import BlobStore
from remuda.oci.client import RegistryClient
from remuda.oci.errors import ContentRefused, PlatformMissing, RegistryFailed
from remuda.oci.fetch import FileProgress, Meter, fetch_image
from remuda.oci.model import Platform
from remuda.oci.reference import parse_reference
from tests.support.images import Blob, image, layer, noise_layer
from tests.support.registry import RegistryServer

pytestmark = pytest.mark.anyio

AMD64 = Platform("linux", "amd64")
ARM64 = Platform("linux", "arm64")


async def pulled(
    client: RegistryClient, text: str, store: BlobStore, platform: Platform = AMD64
) -> list[bytes]:
    found = await client.image(parse_reference(text), platform)
    async with fetch_image(client, found, store) as fetched:
        return [path.read_bytes() for path in await fetched.layers()]


async def test_an_image_comes_by_tag_and_by_digest(
    registry: RegistryServer, client: RegistryClient, store: BlobStore, tmp_path: Path
) -> None:
    built = image([layer({"run.sh": b"#!/bin/sh\n"}), layer({"a": b"x"}, "zstd"), layer({"b": b"y"}, "")])
    registry.pusher.push("plain/image", "v1", built)
    wanted = [part.content for part in built.layers]

    by_tag = await pulled(client, f"{registry.name}/plain/image:v1", store)
    by_digest = await pulled(
        client, f"{registry.name}/plain/image@{built.manifest.digest}", BlobStore(tmp_path / "other")
    )

    assert by_tag == wanted
    assert by_digest == wanted


async def test_each_machine_gets_its_build_and_the_digest_is_the_index(
    registry: RegistryServer, client: RegistryClient, store: BlobStore
) -> None:
    builds = {
        "linux/amd64": image([layer({"a": b"amd64"})]),
        "linux/arm64/v8": image([layer({"a": b"arm64"})], architecture="arm64"),
    }
    listed = registry.pusher.push_index("multi/image", "v1", builds)
    reference = parse_reference(f"{registry.name}/multi/image:v1")

    found = await client.image(reference, ARM64)

    assert found.digest == listed.digest == await client.digest_of(reference)
    assert found.platform_digest == builds["linux/arm64/v8"].manifest.digest
    assert await pulled(client, str(reference), store, ARM64) == [builds["linux/arm64/v8"].layers[0].content]


@pytest.mark.parametrize("indexed", [True, False])
async def test_a_missing_platform_is_said_before_any_layer_is_fetched(
    registry: RegistryServer, client: RegistryClient, indexed: bool
) -> None:
    only = image([layer({"a": b"amd64"})])
    registry.pusher.push_index("missing/image", "indexed", {"linux/amd64": only})
    registry.pusher.push("missing/image", "plain", only)
    reference = parse_reference(f"{registry.name}/missing/image:{'indexed' if indexed else 'plain'}")

    with pytest.raises(PlatformMissing, match="no build for linux/arm64; there is one for linux/amd64"):
        await client.image(reference, ARM64)


async def test_what_is_not_there_is_named(registry: RegistryServer, client: RegistryClient) -> None:
    with pytest.raises(NotFound, match="nothing/here:v1"):
        await client.image(parse_reference(f"{registry.name}/nothing/here:v1"), AMD64)


async def test_a_registry_that_is_not_there_is_named(client: RegistryClient) -> None:
    with pytest.raises(RegistryFailed, match=r"127\.0\.0\.1:1 cannot be reached"):
        await client.digest_of(parse_reference("127.0.0.1:1/a/b"))


async def test_what_is_no_image_is_refused(registry: RegistryServer, client: RegistryClient) -> None:
    chart = image([Blob(b"chart", "application/vnd.cncf.helm.chart.content.v1.tar+gzip")])
    registry.pusher.push("no/image", "v1", chart)

    with pytest.raises(ContentRefused, match=r"layer 1 of .* is 'application/vnd.cncf.helm"):
        await client.image(parse_reference(f"{registry.name}/no/image:v1"), AMD64)


async def test_progress_begins_low_ends_at_100_and_names_layers(
    registry: RegistryServer, client: RegistryClient, store: BlobStore
) -> None:
    built = image([noise_layer(3_000_000, 11), noise_layer(1_000_000, 12)])
    registry.pusher.push("progress/image", "v1", built)
    found = await client.image(parse_reference(f"{registry.name}/progress/image:v1"), AMD64)
    meter = Meter({part.digest: part.size for part in found.layers})
    events: list[FileProgress] = []

    async with fetch_image(client, found, store, events.append) as fetched:
        await fetched.layers()

    percentages = [meter.observe(event, 0.0).percentage for event in events]
    assert percentages[0] == 0
    assert percentages[-1] == 100
    assert {event.file for event in events} == {part.digest for part in built.layers}


async def test_layers_that_are_here_are_not_fetched_again(
    registry: RegistryServer, client: RegistryClient, store: BlobStore
) -> None:
    shared, changed = noise_layer(200_000, 21), noise_layer(100_000, 22)
    registry.pusher.push("upgrade/image", "v1", image([shared]))
    registry.pusher.push("upgrade/image", "v2", image([shared, changed]))
    await pulled(client, f"{registry.name}/upgrade/image:v1", store)
    events: list[FileProgress] = []

    found = await client.image(parse_reference(f"{registry.name}/upgrade/image:v2"), AMD64)
    async with fetch_image(client, found, store, events.append) as fetched:
        await fetched.layers()

    assert [event.done_bytes for event in events if event.file == shared.digest] == [len(shared.content)]
