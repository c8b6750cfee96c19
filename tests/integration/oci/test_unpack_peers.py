"""Images made by other tools unpack to the tree that `umoci` makes of them."""

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from remuda.core.clock import SystemClock
from remuda.oci.client import RegistryClient
from remuda.oci.model import platform_of
from remuda.oci.unpack import UnpackLimits, unpack_image
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.install_spec import spec_from_source
from remuda.worker.depot.layout import METADATA_FILE, RECORD_FILE, DepotLayout
from tests.support.archives import described
from tests.support.debian import debian_program
from tests.support.registry import RegistryServer

pytestmark = pytest.mark.timeout(600)  # The first use of a tool installs it.
TOOL_S = 60
MACHINE = platform_of(platform.system(), platform.machine())
MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}


def tool(name: str, *arguments: str | Path) -> str:
    """Run umoci, skopeo or buildah, which come in packages of their names."""
    command = [debian_program(name, name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def fill(root: Path) -> None:
    """What backend images hold: programs, libraries with links, folders of odd modes, an empty file."""
    (root / "lib").mkdir(parents=True)
    (root / "venv" / "bin").mkdir(parents=True)
    (root / "closed").mkdir()
    (root / "run.sh").write_text("#!/bin/bash\nexec true\n")
    (root / "run.sh").chmod(0o755)
    (root / "lib" / "libx.so.1.2").write_bytes(os.urandom(300_000))
    (root / "lib" / "libx.so.1").symlink_to("libx.so.1.2")
    (root / "lib" / "libx.so").symlink_to("libx.so.1")
    (root / "venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    (root / "venv" / "bin" / "up").symlink_to("../../run.sh")
    (root / "lib" / "same").hardlink_to(root / "lib" / "libx.so.1.2")
    (root / "closed" / ("long" * 50)).write_text("long name")
    (root / "closed").chmod(0o555)
    (root / "secret").touch(mode=0o600)
    (root / "größe").write_text("utf-8")


def change(root: Path) -> None:
    """A second layer: removes, replaces, changes kinds, and makes a folder anew."""
    shutil.rmtree(root / "venv")
    (root / "venv").mkdir()
    (root / "venv" / "new").write_text("new")
    (root / "secret").unlink()
    (root / "lib" / "libx.so").unlink()
    (root / "lib" / "libx.so").mkdir()
    (root / "lib" / "libx.so" / "inside").write_text("was a link")
    (root / "run.sh").write_text("#!/bin/bash\nexec false\n")
    (root / "closed" / "more").write_text("more")


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """An OCI layout with a two-layer image, made by umoci from a changed bundle."""
    layout, bundle = tmp_path / "image", tmp_path / "bundle"
    tool("umoci", "init", "--layout", layout)
    tool("umoci", "new", "--image", f"{layout}:latest")
    tool("umoci", "unpack", "--rootless", "--image", f"{layout}:latest", bundle)
    fill(bundle / "rootfs")
    tool("umoci", "repack", "--image", f"{layout}:latest", bundle)
    again = tmp_path / "again"
    tool("umoci", "unpack", "--rootless", "--image", f"{layout}:latest", again)
    (again / "rootfs" / "closed").chmod(0o755)
    change(again / "rootfs")
    (again / "rootfs" / "closed").chmod(0o555)
    tool("umoci", "repack", "--image", f"{layout}:latest", again)
    return layout


def layers_of(layout: Path) -> list[Path]:
    """The image's layers, lowest first."""
    blobs = layout / "blobs" / "sha256"
    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads((blobs / index["manifests"][0]["digest"].removeprefix("sha256:")).read_text())
    return [blobs / layer["digest"].removeprefix("sha256:") for layer in manifest["layers"]]


def unpacked_by_us(layout: Path, target: Path) -> Path:
    target.mkdir()
    unpack_image(layers_of(layout), target, UnpackLimits(), lambda _: None, lambda: False)
    return target


def unpacked_by_umoci(layout: Path, target: Path) -> Path:
    tool("umoci", "unpack", "--rootless", "--image", f"{layout}:latest", target)
    return target / "rootfs"


def copy_by_skopeo(layout: Path, packing: str, target: str, between: Path, *options: str) -> None:
    """Packed anew: it would keep the packing there is."""
    copy = ["skopeo", "--insecure-policy", "copy"]
    tool(*copy, "--dest-decompress", f"oci:{layout}:latest", f"dir:{between}")
    tool(*copy, "--dest-compress-format", packing, *options, f"dir:{between}", target)


async def pulled_by_us(client: RegistryClient, reference: str, folder: Path) -> Path:
    """From a registry, as a backend is installed."""
    places = DepotLayout(folder / "backends", folder / "system", folder / "depot")
    depot = Depot(places, SystemClock(), client, MACHINE)
    return (await depot.install(spec_from_source(reference, "pulled"))).folder


@pytest.mark.anyio
@pytest.mark.parametrize("packing", ["gzip", "zstd"])
async def test_image_pushed_by_skopeo_is_pulled_to_the_same_tree(
    registry: RegistryServer, client: RegistryClient, packing: str, layout: Path, tmp_path: Path
) -> None:
    reference = f"{registry.name}/peers/skopeo:{packing}"
    copy_by_skopeo(layout, packing, f"docker://{reference}", tmp_path / "between", "--dest-tls-verify=false")

    ours = described(await pulled_by_us(client, reference, tmp_path / "ours"))

    for own in (METADATA_FILE, RECORD_FILE):
        ours.pop(own)
    assert ours == described(unpacked_by_umoci(layout, tmp_path / "theirs"))


def test_image_made_by_umoci_unpacks_the_same(layout: Path, tmp_path: Path) -> None:
    ours, theirs = unpacked_by_us(layout, tmp_path / "ours"), unpacked_by_umoci(layout, tmp_path / "theirs")

    assert len(layers_of(layout)) == 2
    assert described(ours) == described(theirs)


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_image_repacked_by_skopeo_unpacks_the_same(packing: str, layout: Path, tmp_path: Path) -> None:
    theirs = unpacked_by_umoci(layout, tmp_path / "theirs")
    copied = tmp_path / "copied"
    copy_by_skopeo(layout, packing, f"oci:{copied}:latest", tmp_path / "between")

    ours = unpacked_by_us(copied, tmp_path / "ours")

    assert all(layer.read_bytes().startswith(MAGIC[packing]) for layer in layers_of(copied))
    assert described(ours) == described(theirs)


def test_image_made_by_buildah_unpacks_the_same(tmp_path: Path) -> None:
    store: list[str | Path] = [
        "--root",
        tmp_path / "store",
        "--runroot",
        tmp_path / "run",
        "--storage-driver",
        "vfs",
    ]
    source, layout = tmp_path / "source", tmp_path / "image"
    source.mkdir()
    fill(source)
    container = tool("buildah", *store, "from", "scratch").strip()
    tool("buildah", *store, "copy", container, source, "/")
    destination = f"oci:{layout}:latest"
    tool("buildah", *store, "commit", "--format", "oci", container, destination)

    ours, theirs = unpacked_by_us(layout, tmp_path / "ours"), unpacked_by_umoci(layout, tmp_path / "theirs")

    assert described(ours) == described(theirs)
    assert (ours / "run.sh").exists()
