"""Container images in plain Python: layers, configurations, manifests and indexes, and pushing them."""

import gzip
import hashlib
import io
import json
import tarfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import zstandard

OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker.distribution"
INDEX = f"{OCI}.index.v1+json"
MANIFEST = f"{OCI}.manifest.v1+json"
CONFIG = f"{OCI}.config.v1+json"
Compression = Literal["", "gzip", "zstd"]


@dataclass(frozen=True, slots=True)
class Blob:
    content: bytes = field(repr=False)
    media_type: str

    @property
    def digest(self) -> str:
        return digest_of(self.content)

    def descriptor(self, **more: object) -> dict[str, object]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.content), **more}


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """A manifest and everything it names."""

    manifest: Blob
    config: Blob
    layers: tuple[Blob, ...]

    @property
    def size(self) -> int:
        return sum(len(layer.content) for layer in {layer.digest: layer for layer in self.layers}.values())


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def noise(size: int, seed: int) -> bytes:
    """Bytes that do not compress; the same for the same seed."""
    return hashlib.shake_128(seed.to_bytes(8, "big")).digest(size)


def tar_of(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def layer(files: Mapping[str, bytes], compression: Compression = "gzip") -> Blob:
    plain = tar_of(files)
    match compression:
        case "gzip":
            return Blob(gzip.compress(plain, compresslevel=1, mtime=0), f"{OCI}.layer.v1.tar+gzip")
        case "zstd":
            return Blob(zstandard.compress(plain, 1), f"{OCI}.layer.v1.tar+zstd")
        case _:
            return Blob(plain, f"{OCI}.layer.v1.tar")


def noise_layer(size: int, seed: int) -> Blob:
    return layer({f"noise-{seed}": noise(size, seed)}, "")


def image(
    layers: Sequence[Blob], os: str = "linux", architecture: str = "amd64", diff_ids: Sequence[str] = ()
) -> BuiltImage:
    described = {
        "os": os,
        "architecture": architecture,
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
    }
    config = Blob(json.dumps(described).encode(), CONFIG)
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.descriptor(),
        "layers": [part.descriptor() for part in layers],
    }
    return BuiltImage(Blob(json.dumps(document).encode(), MANIFEST), config, tuple(layers))


def index(builds: Mapping[str, BuiltImage]) -> Blob:
    """By platform, such as `linux/arm64/v8`; with an attestation beside, as builders leave them."""
    entries = [
        build.manifest.descriptor(
            platform=dict(zip(("os", "architecture", "variant"), name.split("/"), strict=False))
        )
        for name, build in builds.items()
    ]
    entries.append(entries[0] | {"platform": {"os": "unknown", "architecture": "unknown"}})
    return Blob(json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode(), INDEX)


class Pusher:
    """Puts images into a registry the way any client does."""

    def __init__(self, base: str, headers: Mapping[str, str] | None = None) -> None:
        self._base = base
        self._headers = dict(headers or {})

    def push(self, repository: str, tag: str, built: BuiltImage) -> None:
        for blob in {part.digest: part for part in (built.config, *built.layers)}.values():
            self.push_blob(repository, blob)
        self.push_manifest(repository, tag, built.manifest)

    def push_index(self, repository: str, tag: str, builds: Mapping[str, BuiltImage]) -> Blob:
        for build in builds.values():
            self.push(repository, build.manifest.digest, build)
        listed = index(builds)
        self.push_manifest(repository, tag, listed)
        return listed

    def push_manifest(self, repository: str, tag: str, manifest: Blob) -> None:
        url = f"{self._base}/v2/{repository}/manifests/{tag}"
        self._send("PUT", url, manifest.content, manifest.media_type)

    def push_blob(self, repository: str, blob: Blob) -> None:
        place = self._send("POST", f"{self._base}/v2/{repository}/blobs/uploads/", b"", "")
        joint = "&" if urlsplit(place).query else "?"
        self._send("PUT", f"{place}{joint}digest={blob.digest}", blob.content, "application/octet-stream")

    def _send(self, method: str, url: str, body: bytes, media_type: str) -> str:
        headers = {**self._headers, "Content-Type": media_type}
        request = urllib.request.Request(url, data=body, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.headers.get("Location", ""))
