"""Feeds changed and random layers to the unpacker for as long as it is told to.

    uv run --group dev python -m bench.fuzz_unpack [--seconds 300] [--seed 1]

Each case unpacks or is refused; anything else (another error, a case that takes more than ten seconds, a file
outside the folder, a descriptor left open) is printed, its layers are kept in files, the exit status is 1.
"""

import argparse
import gzip
import os
import random
import shutil
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path

import zstandard
from tests.support.archives import folder, hardlink, member, packed, symlink, unpack

from remuda.oci.unpack import ArchiveRefused, UnpackLimits

CASE_S_MAX = 10.0
LIMITS = UnpackLimits(entries_max=1000, bytes_max=8 << 20, file_bytes_max=4 << 20, ratio_free_bytes=4 << 20)
INTERESTING = [
    b"\0",
    b"\xff",
    b"/",
    b"..",
    b"../",
    b".wh.",
    b".wh..wh..opq",
    b"0",
    b"7",
    b"S",
    b"x",
    b"g",
    b"L",
    b"K",
]
PIECES = [
    folder("d"),
    member("d/file", data=b"data" * 300),
    symlink("d/link", "file"),
    hardlink("d/hard", "d/file"),
    member("n" * 150, data=b"long"),
    member("d/.wh.file"),
    member("d/.wh..wh..opq"),
    symlink("d", ".."),
    member("d/link/through"),
    folder("d/link"),
]


def layer_of(source: random.Random) -> bytes:
    """An archive of a few entries in any order, changed in a few places, perhaps cut, perhaps packed."""
    form = source.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
    archive = bytearray(packed(*source.choices(PIECES, k=source.randrange(1, 8)), form=form))
    for _ in range(source.randrange(6)):
        piece = (
            source.choice(INTERESTING) if source.random() < 0.5 else source.randbytes(source.randrange(1, 12))
        )
        start = source.randrange(len(archive))
        archive[start : start + len(piece)] = piece
    if source.random() < 0.9:
        mend(archive)
    data = bytes(archive[: source.randrange(len(archive))] if source.random() < 0.1 else archive)
    match source.randrange(6):
        case 0:
            data = gzip.compress(data, 1)
        case 1:
            data = zstandard.compress(data)
        case 2:
            packing = gzip.compress(data, 1) if source.random() < 0.5 else zstandard.compress(data)
            changed = bytearray(packing)
            changed[source.randrange(len(changed))] = source.randrange(256)
            data = bytes(changed)
    return data


def mend(archive: bytearray) -> None:
    """Put checksums right, so that changed headers are believed."""
    for start in range(0, len(archive) - 511, 512):
        if archive[start + 257 : start + 262] == b"ustar":
            archive[start + 148 : start + 156] = b" " * 8
            archive[start + 148 : start + 156] = b"%06o\0 " % sum(archive[start : start + 512])


def outcome(layers: list[bytes], base: Path) -> str:
    """`unpacked`, `refused`, or what went wrong."""
    target = base / "target"
    target.mkdir()
    descriptors, began = len(os.listdir("/dev/fd")), time.monotonic()
    try:
        unpack(target, *layers, limits=LIMITS)
        result = "unpacked"
    except ArchiveRefused:
        result = "refused"
    except Exception as error:  # The edge: whatever it is, it is the finding.
        result = f"{type(error).__name__}: {error}"
    if os.listdir(base) != ["target"]:
        result = "wrote outside"
    if len(os.listdir("/dev/fd")) != descriptors:
        result = "left a descriptor open"
    if time.monotonic() - began > CASE_S_MAX:
        result = "took too long"
    shutil.rmtree(target)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the unpacker.")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    source, counts = random.Random(options.seed), Counter[str]()
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        while time.monotonic() < end:
            layers = [layer_of(source) for _ in range(source.randrange(1, 3))]
            result = outcome(layers, Path(name))
            counts[result] += 1
            if result not in ("unpacked", "refused"):
                for number, layer in enumerate(layers):
                    Path(f"fuzz-{counts.total()}-{number}.tar").write_bytes(layer)
                print(f"case {counts.total()}: {result}")
    print(f"{counts.total()} cases: {dict(counts)}")
    return 0 if set(counts) <= {"unpacked", "refused"} else 1


if __name__ == "__main__":
    raise SystemExit(main())
