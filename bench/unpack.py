"""How fast layers are unpacked, against `tar -x` of the same layers in the same run.

    uv run --group dev python -m bench.unpack [--megabytes 500] [--folder DIR]

One layer of mixed files (half of its bytes in files of some kilobytes, half in large ones; as compressible as
libraries and source text are) and one of small files alone, each plain, gzip and zstd. Prints MB/s, files/s
and the ratio to `tar`; the best of three runs each, in turns. What was unpacked stays until the end: a file
system may be slow to make files just after others were removed.
"""

import argparse
import os
import random
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from remuda.oci.unpack import UnpackLimits, unpack_image

WORDS = [bytes(random.Random(seed).randbytes(9)) for seed in range(4096)]
PACKED = {"plain": None, "gzip": ["gzip", "-6", "-k"], "zstd": ["zstd", "-q", "-3", "-k"]}
ROUNDS = 3
SUFFIX = {"plain": "", "gzip": ".gz", "zstd": ".zst"}


def content(source: random.Random, size: int) -> bytes:
    """About three to one under gzip: known words among random bytes."""
    parts, length = list[bytes](), 0
    while length < size:
        part = source.randbytes(16) if source.random() < 0.15 else source.choice(WORDS) * 2
        parts.append(part)
        length += len(part)
    return b"".join(parts)[:size]


def build(layer: Path, total_bytes: int, sizes: Callable[[random.Random], int]) -> int:
    """Write a tar archive of about so many bytes; return how many files it holds."""
    source = random.Random(7)
    pool = content(source, 16 << 20)
    files = written = 0
    with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as archive:
        while written < total_bytes:
            size = min(sizes(source), len(pool))
            start = source.randrange(len(pool) - size + 1)
            member = tarfile.TarInfo(f"venv/lib/site-packages/package{files // 40:04}/module{files:06}.py")
            member.size, member.mode, member.mtime = size, 0o644, 1_700_000_000
            archive.addfile(member, BytesIO(pool[start : start + size]))
            files, written = files + 1, written + size
    return files


def mixed(source: random.Random) -> int:
    return source.randrange(1 << 20, 16 << 20) if source.random() < 0.002 else source.randrange(200, 32_000)


def small(source: random.Random) -> int:
    return source.randrange(0, 4_000)


def ours(layer: Path, target: Path) -> None:
    unpack_image([layer], target, UnpackLimits(), lambda _: None, lambda: False)


def theirs(layer: Path, target: Path) -> None:
    subprocess.run(["tar", "-xf", str(layer), "-C", str(target)], check=True)


def seconds(unpack: Callable[[Path, Path], None], layer: Path, folder: Path) -> float:
    target = Path(tempfile.mkdtemp(dir=folder))
    os.sync()
    began = time.perf_counter()
    unpack(layer, target)
    return time.perf_counter() - began


def report(kind: str, plain: Path, files: int, folder: Path) -> None:
    unpacked_mb = plain.stat().st_size / 1e6
    for packing, command in PACKED.items():
        layer = Path(f"{plain}{SUFFIX[packing]}")
        if command:
            subprocess.run([*command, str(plain)], check=True)
        turns = [(seconds(theirs, layer, folder), seconds(ours, layer, folder)) for _ in range(ROUNDS)]
        theirs_s, ours_s = (min(times) for times in zip(*turns, strict=True))
        print(
            f"{kind:6} {packing:6} {layer.stat().st_size / 1e6:6.0f} MB packed, {unpacked_mb:4.0f} MB, "
            f"{files:6} files: {unpacked_mb / ours_s:6.0f} MB/s {files / ours_s:7.0f} files/s; "
            f"tar {unpacked_mb / theirs_s:6.0f} MB/s {files / theirs_s:7.0f} files/s; "
            f"ratio {theirs_s / ours_s:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Unpacking against tar.")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to unpack; default: the usual for such"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for kind, total_bytes, sizes in (
            ("mixed", options.megabytes * 1_000_000, mixed),
            ("small", options.megabytes * 100_000, small),
        ):
            layer = folder / f"{kind}.tar"
            report(kind, layer, build(layer, total_bytes, sizes), folder)


if __name__ == "__main__":
    main()
