"""Unpacking stays within the machine's means: memory, disk, time."""

import gzip
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda.oci.errors import DiskFull
from tests.support.archives import member, packed, unpack
from tests.support.debian import debian_program

GROWTH_BYTES_MAX = 40 << 20
MEASURED = """
import resource, sys
from pathlib import Path
from remuda.oci.unpack import UnpackLimits, unpack_image
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
unpack_image([Path(sys.argv[1])], Path(sys.argv[2]), UnpackLimits(), lambda _: None, lambda: False)
print(peak() - before)
"""


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_memory_stays_small_whatever_the_size_of_the_layer(packing: str, tmp_path: Path) -> None:
    """Many times what may be held of it, and all zeros, which is the most that a small layer can hold."""
    layer, target = tmp_path / "layer", tmp_path / "target"
    target.mkdir()
    size = 300_000_000
    info = tarfile.TarInfo("zeros")
    info.size = size
    pack = ["gzip", "-1"] if packing == "gzip" else [debian_program("zstd", "zstd"), "-q"]
    with layer.open("wb") as out:
        packer = subprocess.Popen(pack, stdin=subprocess.PIPE, stdout=out)
        assert packer.stdin is not None
        with packer.stdin as pipe:
            pipe.write(info.tobuf())
            for _ in range(size // 1_000_000):
                pipe.write(bytes(1_000_000))
            pipe.write(bytes(-size % 512 + 1024))
        assert packer.wait(60) == 0

    command = [sys.executable, "-c", MEASURED, str(layer), str(target)]
    measured = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)

    assert int(measured.stdout) < GROWTH_BYTES_MAX
    assert (target / "zeros").stat().st_size == size


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of eight megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=200", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, timeout=20).returncode != 0:
        pytest.skip("only root can mount a small disk")
    yield disk
    subprocess.run(["umount", disk], check=True, timeout=20)


def test_full_disk_is_told_with_numbers_and_the_entry(small_disk: Path) -> None:
    layer = gzip.compress(
        packed(member("fits", data=bytes(5 << 20)), member("deep/large", data=bytes(6 << 20)))
    )

    with pytest.raises(DiskFull) as full:
        unpack(small_disk, layer)

    assert f"the disk of {small_disk} is full" in full.value.message
    assert "B are free" in full.value.message
    assert "MiB in 2 entries" in full.value.message
    assert "deep/large" in full.value.message
    assert full.value.retryable


def test_disk_without_room_for_more_files_is_told_as_well(small_disk: Path) -> None:
    with pytest.raises(DiskFull, match=r"f19\d found no room"):
        unpack(small_disk, packed(*(member(f"f{number}") for number in range(300))))
