"""Backends that a manifest describes: of an image, of a gallery, or alone."""

import json

import pytest

from remuda.oci.errors import NotABackend
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.install_spec import InstallSpec
from tests.support.images import image, layer
from tests.support.registry import RegistryServer

pytestmark = pytest.mark.anyio


def pushed(registry: RegistryServer, repository: str, files: dict[str, bytes]) -> str:
    registry.pusher.push(repository, "v1", image([layer(files)]))
    return f"{registry.name}/{repository}:v1"


async def test_an_image_with_a_manifest_needs_no_run_file(registry: RegistryServer, depot: Depot) -> None:
    uri = pushed(registry, "manifests/own", {"remuda.yaml": b"own: 1\n"})

    done = await depot.install(InstallSpec("own", (uri,), alias="mine", manifest="other: 2\n"))

    assert (done.folder / "remuda.yaml").read_text() == "own: 1\n"
    assert await depot.run_file("mine") == done.folder / "remuda.yaml"
    assert not (await depot.install(InstallSpec("own", (uri,), alias="mine", manifest="other: 2\n"))).changed


async def test_a_gallerys_manifest_serves_an_image_that_has_none(
    registry: RegistryServer, depot: Depot
) -> None:
    uri = pushed(registry, "manifests/none", {"server": b"#!/bin/sh\n"})
    with pytest.raises(NotABackend, match=r"neither run\.sh nor remuda\.yaml"):
        await depot.install(InstallSpec("none", (uri,)))

    done = await depot.install(InstallSpec("none", (uri,), manifest="port: 1\n"))

    assert (done.folder / "remuda.yaml").read_text() == "port: 1\n"
    assert [one.name for one in (await depot.installed()).reported] == ["none"]


async def test_a_gallerys_new_manifest_is_an_upgrade(registry: RegistryServer, depot: Depot) -> None:
    uri = pushed(registry, "manifests/new", {"server": b"#!/bin/sh\n"})
    first, second = (InstallSpec("new", (uri,), manifest=f"port: {port}\n") for port in (1, 2))
    await depot.install(first)
    assert not (await depot.install(first, refresh=True)).changed

    done = await depot.install(second, refresh=True)

    assert done.changed
    assert (done.folder / "remuda.yaml").read_text() == "port: 2\n"


async def test_a_run_file_comes_before_a_manifest(registry: RegistryServer, depot: Depot) -> None:
    uri = pushed(registry, "manifests/both", {"run.sh": b"#!/bin/sh\n", "remuda.yaml": b"a: 1\n"})

    done = await depot.install(InstallSpec("both", (uri,)))

    assert await depot.run_file("both") == done.folder / "run.sh"


async def test_a_meta_backend_may_stand_for_a_manifest(registry: RegistryServer, depot: Depot) -> None:
    uri = pushed(registry, "manifests/meta", {"remuda.yaml": b"own: 1\n"})

    done = await depot.install(InstallSpec("cpu-web", (uri,), meta="web"))

    assert await depot.run_file("web") == done.folder / "remuda.yaml"


async def test_a_manifest_alone_is_a_backend(depot: Depot) -> None:
    done = await depot.register("remote", "url: http://127.0.0.1:1\n")

    assert done.changed
    assert sorted(path.name for path in done.folder.iterdir()) == [
        ".remuda.json",
        "metadata.json",
        "remuda.yaml",
    ]
    told = json.loads((done.folder / "metadata.json").read_text())
    assert sorted(told) == ["installed_at", "name"]
    assert await depot.run_file("remote") == done.folder / "remuda.yaml"
    assert not (await depot.register("remote", "url: http://127.0.0.1:1\n")).changed
    assert (await depot.register("remote", "url: http://127.0.0.1:2\n")).changed
    assert await depot.remove("remote") == ("remote",)
