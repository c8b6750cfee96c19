"""An image like those of backends, as large as wanted, made of this environment's own files.

Most bytes are in shared libraries of 8 to 120 MB: two thirds real machine code, cut from the libraries here,
one third noise, for GPU kernels come compressed. Beside them twelve real Python sources for each packed
megabyte. Layers are gzip -6, as builders make them; all together pack a little below two to one.
"""

import gzip
import hashlib
import io
import random
import sysconfig
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from tests.support.images import OCI, Blob, BuiltImage, image

from remuda.oci.model import Platform

LAYERS = 4
LIBRARY_SIZES = (8_000_000, 40_000_000, 120_000_000)
SLICE_BYTES = 1 << 20
NOISE_SHARE = 1 / 3
SOURCES_PER_MB = 12
PACKED_SHARE = 0.55  # Of a library's bytes, about.


@dataclass(frozen=True, slots=True)
class BackendImage:
    built: BuiltImage
    files: int
    unpacked_bytes: int


@dataclass(frozen=True, slots=True)
class _Layer:
    blob: Blob
    diff_id: str
    files: int
    unpacked_bytes: int


def backend_image(packed_bytes: int, platform: Platform) -> BackendImage:
    """About so large. Takes half a minute for each gigabyte and core."""
    code = b"".join(path.read_bytes() for path in _own_files("*.so*"))
    sources = [path.read_bytes() for path in _own_files("*.py")]

    def layer(number: int) -> _Layer:
        rng = random.Random(number)
        wanted = packed_bytes // LAYERS
        files = dict(_libraries(rng, code, number, wanted))
        count = wanted * SOURCES_PER_MB // 1_000_000
        for place, source in enumerate(islice(cycle(sources), count)):
            files[f"venv/lib/site-packages/layer{number}/package{place // 40:04}/module{place:06}.py"] = (
                source
            )
        return _packed(files)

    with ThreadPoolExecutor(2) as threads:
        layers = [*threads.map(layer, range(LAYERS)), _packed({"run.sh": b"#!/bin/sh\n"})]
    diff_ids = [one.diff_id for one in layers]
    return BackendImage(
        image([one.blob for one in layers], platform.os, platform.architecture, diff_ids),
        sum(one.files for one in layers),
        sum(one.unpacked_bytes for one in layers),
    )


def _own_files(pattern: str) -> list[Path]:
    return sorted(path for path in Path(sysconfig.get_path("platlib")).rglob(pattern) if path.is_file())


def _libraries(rng: random.Random, code: bytes, layer: int, packed: int) -> Iterator[tuple[str, bytes]]:
    left = int(packed / PACKED_SHARE)
    for place, wanted in enumerate(cycle(LIBRARY_SIZES)):
        size = min(wanted, left)
        if size <= 0:
            return
        yield f"lib/layer{layer}/libpart{place:03}.so", _library(rng, code, size)
        left -= size


def _library(rng: random.Random, code: bytes, size: int) -> bytes:
    slices = list[bytes]()
    for _ in range(size // SLICE_BYTES + 1):
        if rng.random() < NOISE_SHARE:
            slices.append(rng.randbytes(SLICE_BYTES))
        else:
            start = rng.randrange(len(code) - SLICE_BYTES)
            slices.append(code[start : start + SLICE_BYTES])
    return b"".join(slices)[:size]


def _packed(files: dict[str, bytes]) -> _Layer:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o755, 1_700_000_000
            archive.addfile(entry, io.BytesIO(content))
    plain = out.getbuffer()
    blob = Blob(gzip.compress(plain, compresslevel=6, mtime=0), f"{OCI}.layer.v1.tar+gzip")
    diff_id = f"sha256:{hashlib.sha256(plain).hexdigest()}"
    return _Layer(blob, diff_id, len(files), sum(map(len, files.values())))
