"""What hubs have, as data: files that can be fetched, and what a source stands for now."""

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from pydantic import JsonValue

from remuda.hubs.quantisations import NodeRoom
from remuda.models.source_refs import ModelSource
from remuda.oci.blobs import BlobStore, OnBytes
from remuda.oci.transport import BodyStream


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a model. `path` is relative to the model's folder. An empty `sha256`: none is known.

    `urls` are places that have the same bytes, asked in turn; each is an address of http, https, file or s3,
    or a source of the form pypi:. Without a checksum only the first that answers is used.
    """

    path: str
    size: int | None
    sha256: str
    urls: tuple[str, ...]
    role: str = ""
    """What it is beside a model: mmproj, adapter or draft; empty: the model itself, or not known."""

    @property
    def digest(self) -> str | None:
        return f"sha256:{self.sha256}" if self.sha256 else None

    @property
    def public_url(self) -> str:
        """A place that says nothing secret by itself, for machines without our credentials; it may refuse
        them. Empty: there is none."""
        return next((url for url in self.urls if _is_public(url)), "")


def _is_public(url: str) -> bool:
    """A query may hold a signature."""
    if url.startswith("pypi:"):
        return True
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and not parts.query and "@" not in parts.netloc


@dataclass(frozen=True, slots=True)
class ModelHints:
    """What a hub says of a model beside its files: a Go template, a system prompt, parameters by Ollama's
    names."""

    template: str = ""
    system: str = ""
    parameters: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a source stands for now. `revision` is a commit, digest or version; `choice` says which of several
    variants was taken, and why."""

    source: ModelSource
    revision: str
    files: tuple[RemoteFile, ...]
    choice: str = ""
    hints: ModelHints = ModelHints()
    notes: tuple[str, ...] = ()
    """What people should know: that a repository was renamed."""

    @property
    def size(self) -> int | None:
        """Of all files; None where one does not tell."""
        sizes = [file.size for file in self.files]
        return sum(size for size in sizes if size is not None) if None not in sizes else None


AskRoom = Callable[[], Awaitable[Sequence[NodeRoom]]]
"""Every registered node that can serve models. Asked only where there is something to choose."""


class Supplier(Protocol):
    """One place that has the bytes of a file."""

    @property
    def name(self) -> str:
        """For people, without credentials."""
        ...

    async def prepare(self, store: BlobStore, checked: bool, on_bytes: OnBytes) -> "Offer":
        """Do what must be done before bytes can be read. `checked`: a digest will tell if they are right."""
        ...

    def opened(self, offset: int, avoid: Set[str]) -> AbstractAsyncContextManager[BodyStream]:
        """Bytes from an offset on, without asking mirrors in `avoid`."""
        ...


@dataclass(frozen=True, slots=True)
class Offer:
    """What a supplier is about to send. An empty `version`: nothing tells it from others."""

    size: int | None = None
    version: str = ""
