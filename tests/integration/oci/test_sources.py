"""Backends from files and web servers, brought into the same form as images."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiohttp import web

from remuda.core.errors import NotFound
from remuda.oci.blobs import BlobStore
from remuda.oci.client import RegistryClient
from remuda.oci.errors import ContentRefused, PlatformMissing
from remuda.oci.fetch import fetch_image
from remuda.oci.model import Image, Platform
from remuda.oci.reference import Archive, Folder
from remuda.oci.sources import fetch_archive, import_image, require_folder
from tests.integration.oci.faulty_server import faulty_server
from tests.support.images import BuiltImage, digest_of, image, index, layer, noise, tar_of

pytestmark = pytest.mark.anyio

AMD64 = Platform("linux", "amd64")
ARCHIVE = tar_of({"run.sh": b"#!/bin/sh\n", "noise": noise(200_000, 3)})
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()


async def contents(client: RegistryClient, brought: Image, store: BlobStore) -> list[bytes]:
    async with fetch_image(client, brought, store) as fetched:
        return [path.read_bytes() for path in await fetched.layers()]


def write(folder: Path, files: Mapping[str, bytes], form: str) -> Path:
    """As a folder, a tar, or a packed tar."""
    if form == "folder":
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder
    packed = tar_of({f"./{name}": content for name, content in files.items()})
    path = folder / "saved.tar"
    path.write_bytes(gzip.compress(packed) if form == "tar.gz" else packed)
    return path


def layout(builds: Mapping[str, BuiltImage]) -> Mapping[str, bytes]:
    """An OCI layout as tools write it: its index names one index, which names the builds."""
    listed = index(builds)
    parts = [part for built in builds.values() for part in (built.manifest, built.config, *built.layers)]
    top = json.dumps({"schemaVersion": 2, "manifests": [listed.descriptor()]})
    files = {f"blobs/sha256/{blob.digest.removeprefix('sha256:')}": blob.content for blob in (listed, *parts)}
    return {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": top.encode(), **files}


def saved(parts: Mapping[str, bytes], **config: object) -> dict[str, bytes]:
    """As `docker save` writes it."""
    diff_ids = [digest_of(content) for content in parts.values()]
    described = {"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": diff_ids}, **config}
    manifest = [{"Config": "config.json", "RepoTags": [], "Layers": list(parts)}]
    return {
        "manifest.json": json.dumps(manifest).encode(),
        "config.json": json.dumps(described).encode(),
        **parts,
    }


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz"])
async def test_an_oci_layout_is_an_image(
    client: RegistryClient, store: BlobStore, tmp_path: Path, form: str
) -> None:
    built = image([layer({"a": b"1"}), layer({"b": b"2"}, "zstd")])
    path = write(tmp_path, layout({"linux/amd64": built}), form)

    brought = await import_image(client, path, AMD64, store)

    assert await contents(client, brought, store) == [part.content for part in built.layers]
    assert brought.platform_digest == built.manifest.digest
    with pytest.raises(PlatformMissing, match="there is one for linux/amd64"):
        await import_image(client, path, Platform("linux", "arm64"), store)


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz"])
async def test_a_docker_archive_is_an_image(
    client: RegistryClient, store: BlobStore, tmp_path: Path, form: str
) -> None:
    parts = {"one/layer.tar": tar_of({"a": b"1"}), "two/layer.tar": tar_of({"b": b"2"})}

    brought = await import_image(client, write(tmp_path, saved(parts), form), AMD64, store)

    assert await contents(client, brought, store) == list(parts.values())


async def test_a_layer_saved_as_a_link_is_found(
    client: RegistryClient, store: BlobStore, tmp_path: Path
) -> None:
    content = tar_of({"a": b"1"})
    files = saved({"one/layer.tar": content, "two/layer.tar": content})
    out = io.BytesIO(tar_of({name: body for name, body in files.items() if name != "two/layer.tar"}))
    with tarfile.open(fileobj=out, mode="a") as archive:
        link = tarfile.TarInfo("two/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../one/layer.tar"
        archive.addfile(link)
    (tmp_path / "saved.tar").write_bytes(out.getvalue())

    brought = await import_image(client, tmp_path / "saved.tar", AMD64, store)

    assert await contents(client, brought, store) == [content, content]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"readme": b"hello"}, "holds no image"),
        ({"manifest.json": b"{"}, "not a list of saved images"),
        ({"manifest.json": b"[]"}, "holds 0 images"),
        (saved({}) | {"manifest.json": b'[{"Config":"absent","Layers":[]}]'}, "lacks 'absent'"),
        (saved({"a.tar": b"x"}) | {"a.tar": b"y"}, "arrived with digest"),
        (
            saved({}, rootfs={}) | {"manifest.json": b'[{"Config":"config.json","Layers":["../../secret"]}]'},
            "lacks '../../secret'",
        ),
        ({"index.json": b'{"manifests":[]}'}, "no build for linux/amd64"),
        ({"index.json": b"nonsense"}, "cannot be used"),
    ],
)
@pytest.mark.parametrize("form", ["folder", "tar"])
async def test_a_file_that_is_no_image_is_refused(
    client: RegistryClient, store: BlobStore, tmp_path: Path, files: Mapping[str, bytes], says: str, form: str
) -> None:
    (tmp_path / "secret").write_text("not for images")
    folder = tmp_path / "deep" / "image"
    folder.mkdir(parents=True)

    with pytest.raises((ContentRefused, PlatformMissing), match=says):
        await import_image(client, write(folder, files, form), AMD64, store)

    assert store.listing() == []


async def test_a_file_that_is_cut_short_is_refused(
    client: RegistryClient, store: BlobStore, tmp_path: Path
) -> None:
    whole = write(tmp_path, layout({"linux/amd64": image([layer({"a": noise(50_000, 1)})])}), "tar.gz")
    whole.write_bytes(whole.read_bytes()[:-20_000])

    with pytest.raises(ContentRefused, match="not a tar archive that can be read"):
        await import_image(client, whole, AMD64, store)
    with pytest.raises(NotFound, match="No such file"):
        await import_image(client, tmp_path / "absent.tar", AMD64, store)


@pytest.mark.parametrize("sha256", [SHA256, ""])
async def test_a_local_archive_is_an_image_of_one_layer(
    client: RegistryClient, store: BlobStore, tmp_path: Path, sha256: str
) -> None:
    (tmp_path / "backend.tar").write_bytes(ARCHIVE)

    brought = await fetch_archive(client, Archive(tmp_path / "backend.tar"), sha256, store)

    assert brought.digest == f"sha256:{SHA256}"
    assert await contents(client, brought, store) == [ARCHIVE]


@pytest.mark.parametrize("sha256", [SHA256, ""])
async def test_a_remote_archive_is_resumed(client: RegistryClient, store: BlobStore, sha256: str) -> None:
    ranges: list[str] = []

    async def breaking(request: web.Request) -> web.StreamResponse | None:
        ranges.append(request.headers.get("Range", ""))
        begin = request.http_range.start or 0
        headers = {"ETag": '"one"', "Content-Length": str(len(ARCHIVE) - begin)}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(ARCHIVE) - 1}/{len(ARCHIVE)}"
        response = web.StreamResponse(status=206 if begin else 200, headers=headers)
        await response.prepare(request)
        await response.write(ARCHIVE[begin : begin + 100_000])
        if begin + 100_000 < len(ARCHIVE) and request.transport is not None:
            request.transport.close()
        return response

    async with faulty_server(image([]), breaking) as server:
        url = f"http://127.0.0.1:{server.port}/backend.tar?signature=x"
        brought = await fetch_archive(client, Archive(url), sha256, store)

    assert await contents(client, brought, store) == [ARCHIVE]
    assert ranges[:2] == ["", "bytes=100000-"]


async def test_an_archive_with_another_checksum_is_refused(
    client: RegistryClient, store: BlobStore, tmp_path: Path
) -> None:
    (tmp_path / "backend.tar").write_bytes(ARCHIVE)

    with pytest.raises(ContentRefused, match="backend.tar arrived with digest"):  # noqa: RUF043
        await fetch_archive(client, Archive(tmp_path / "backend.tar"), "0" * 64, store)

    assert store.listing() == []


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert require_folder(Folder(tmp_path)) == tmp_path
    with pytest.raises(NotFound, match="absent is not a folder"):
        require_folder(Folder(tmp_path / "absent"))
