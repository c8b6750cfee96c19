"""From a source to its files, and from a file to verified bytes in the blob store."""

from collections.abc import AsyncIterator, Mapping, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
from anyio.to_thread import run_sync
from pydantic import SecretStr

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Forbidden, Invalid, Misconfigured, NotFound, RemudaError, Unauthorized
from remuda.hubs.credentials import CredentialsFile, RegistryKeys
from remuda.hubs.github import MEDIA, RAW, Github
from remuda.hubs.hugging_face import HuggingFace
from remuda.hubs.hugging_face_settings import HubSettings
from remuda.hubs.index_settings import configured_indexes
from remuda.hubs.local_files import LocalSupplier, list_files
from remuda.hubs.model import AskRoom, Offer, RemoteFile, Resolved, Supplier
from remuda.hubs.object_storage import ObjectStorage
from remuda.hubs.package_index import PackageIndexes, WheelSupplier
from remuda.hubs.packed_layers import PackedSupplier
from remuda.hubs.plain_http import HttpSupplier, file_name
from remuda.hubs.registries import ModelRegistries, registry_supplier
from remuda.models.source_refs import (
    OLLAMA_HOST,
    BucketObject,
    GithubFile,
    HubModel,
    LocalPath,
    ModelSource,
    OciModel,
    OllamaModel,
    UploadedFiles,
    WebFile,
    WheelFile,
    parse_source,
)
from remuda.oci import limits
from remuda.oci.auth import Keychain, docker_config_files
from remuda.oci.blobs import BlobStore, OnBytes, WantedBlob
from remuda.oci.client import RegistryClient, open_client
from remuda.oci.errors import ContentRefused, RegistryFailed, VersionChanged
from remuda.oci.fetch import fetch_blob
from remuda.oci.sources import place_key
from remuda.oci.transport import BodyStream, Registries, RetryPolicy

log = structlog.get_logger(__name__)

_UNPACKING: Final = (WheelSupplier, PackedSupplier)
VERSIONS_MAX: Final = 3  # Of a file that is replaced again and again while it is fetched.
_ELSEWHERE: Final = (RegistryFailed, NotFound, Unauthorized, Forbidden, Misconfigured, ContentRefused)
"""Failures after which another place may still have what is wanted."""


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How sources are reached from this machine."""

    credentials: CredentialsFile = field(default_factory=lambda: CredentialsFile(None))
    env: Mapping[str, str] = field(default_factory=dict)
    """The environment that this process was started with: where people have set up hubs already."""
    ollama_host: str = OLLAMA_HOST
    github_raw: str = RAW
    github_media: str = MEDIA


class Hubs:
    """Opened by `open_hubs`; safe to share between tasks."""

    def __init__(self, client: RegistryClient, access: HubAccess) -> None:
        self._client = client
        self._access = access
        self._indexes = PackageIndexes(client, lambda: configured_indexes(access.env))
        self._github = Github(client, access.github_raw, access.github_media)
        self._storage = ObjectStorage(client, access.env)
        self._registries = ModelRegistries(client, access.ollama_host)
        self._hugging_face = HuggingFace(client, HubSettings(access.env), self._authorization)

    async def resolve(self, source: ModelSource, room: AskRoom) -> Resolved:
        """What the source stands for now. Of several variants one that a node of `room` can hold is chosen.

        NotFound, Unauthorized, Forbidden or Invalid, with what to do, when it cannot be had as it is.
        """
        match source:
            case WebFile():
                return await self._resolve_web(source)
            case LocalPath():
                return Resolved(source, "", await run_sync(list_files, source))
            case WheelFile():
                return await self._resolve_wheel(source)
            case HubModel():
                return await self._hugging_face.resolve(source, room)
            case OllamaModel():
                return await self._registries.resolve_ollama(source)
            case OciModel():
                return await self._registries.resolve_oci(source)
            case GithubFile():
                return await self._github.resolve(source)
            case BucketObject():
                return await self._storage.resolve(source, await self._access.credentials.read())
            case UploadedFiles():
                raise Invalid(f"{source} is of the frontend that took it in, and comes from no hub")

    async def snapshot(self, source: HubModel) -> Resolved:
        """All files of a repository on Hugging Face, as they are now; raises as `resolve` does."""
        return await self._hugging_face.snapshot(source)

    async def fetch(self, file: RemoteFile, blobs: BlobStore, on_bytes: OnBytes) -> str:
        """Have the file in the store, and return its digest. What an earlier try left is continued.

        ContentRefused when no place sends what was promised.
        """
        if file.digest is not None and blobs.find(file.digest) is not None:
            on_bytes(file.size if file.size is not None else blobs.path(file.digest).stat().st_size)
            return file.digest
        cached = await self._cached(file)
        if cached is not None and file.digest and await run_sync(blobs.adopt, cached, file.digest):
            on_bytes(cached.stat().st_size)
            return file.digest
        for _ in range(VERSIONS_MAX - 1):
            try:
                return await self._fetch(file, blobs, on_bytes)
            except VersionChanged as changed:
                log.warning("file_replaced_meanwhile", file=file.path, reason=changed.message)
        return await self._fetch(file, blobs, on_bytes)

    async def _fetch(self, file: RemoteFile, blobs: BlobStore, on_bytes: OnBytes) -> str:
        suppliers, offer = await self._prepared(file, blobs, on_bytes)
        key = file.digest or place_key(f"{suppliers[0].name} {offer.version}")
        size = file.size if file.digest else offer.size
        wanted = WantedBlob(file.path, key, file.digest, size, one_version=bool(offer.version))
        opened = _Opened(suppliers).opened
        digest = await fetch_blob(opened, wanted, blobs, self._client.retry, self._client.entropy, on_bytes)
        for supplier in suppliers:
            if isinstance(supplier, _UNPACKING):
                await supplier.finish()
        return digest

    async def _prepared(
        self, file: RemoteFile, blobs: BlobStore, on_bytes: OnBytes
    ) -> tuple[list[Supplier], Offer]:
        """Those that can supply the file, at least one; without a checksum the first of them alone."""
        ready: list[Supplier] = []
        first = Offer()
        failure: RemudaError | None = None
        cached = await self._cached(file)
        urls = file.urls if cached is None else (str(LocalPath(str(cached))), *file.urls)
        for url in urls:
            try:
                supplier = await self._supplier(url)
                if ready and isinstance(supplier, _UNPACKING):
                    continue  # Costs a whole download before anything can be read.
                offer = await supplier.prepare(blobs, file.digest is not None, on_bytes)
            except _ELSEWHERE as error:
                failure = failure or error
                log.warning("place_skipped", file=file.path, reason=error.message)
                continue
            first = first if ready else offer
            ready.append(supplier)
            if file.digest is None:
                break
        if not ready:
            raise failure or Invalid(f"no place is known that has {file.path}")
        return ready, first

    async def _cached(self, file: RemoteFile) -> Path | None:
        """What another program of this machine has fetched already. Its bytes are not checked yet."""
        for url in file.urls:
            if (path := await self._hugging_face.cached(url, file)) is not None:
                return path
        return None

    async def _supplier(self, url: str) -> Supplier:
        if self._hugging_face.owns(url):
            return await self._hugging_face.supplier(url)
        if (layer := registry_supplier(self._client, url)) is not None:
            return layer
        match parse_source(url):
            case WebFile(address):
                return HttpSupplier(self._client, address, await self._authorization(address))
            case HubModel() as source if source.path:
                return await self._hugging_face.supplier(self._hugging_face.url(source))
            case LocalPath(path):
                return LocalSupplier(Path(path))
            case BucketObject() as source:
                return self._storage.supplier(source, await self._access.credentials.read())
            case WheelFile() as source:
                return WheelSupplier(self._client, self._indexes, source)
            case other:
                raise Invalid(f"{other} is not the place of one file")

    async def _authorization(self, url: str) -> SecretStr | None:
        credentials = await self._access.credentials.read()
        return credentials.authorization(url)

    async def _resolve_web(self, source: WebFile) -> Resolved:
        supplier = await self._supplier(str(source))
        assert isinstance(supplier, HttpSupplier), "it is an address"
        offer = await supplier.look()
        file = RemoteFile(file_name(source.url), offer.size, source.sha256, (source.url,))
        return Resolved(source, source.sha256 or offer.version, (file,))

    async def _resolve_wheel(self, source: WheelFile) -> Resolved:
        wheel = await self._indexes.wheel(source)
        size = await self._indexes.member_size(wheel, source.path)
        file = RemoteFile(source.path.rpartition("/")[2], size, source.sha256, (str(source),))
        return Resolved(source, source.version, (file,))


class _Opened:
    """The bytes of one file from whichever supplier has them."""

    def __init__(self, suppliers: list[Supplier]) -> None:
        self._suppliers = suppliers

    @asynccontextmanager
    async def opened(self, offset: int, turn: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
        several = len(self._suppliers) > 1
        left = [one for one in self._suppliers if one.name not in avoid]
        if not left:
            raise ContentRefused("no place has sent what was promised", hint="check the checksum")
        turn %= len(left)
        failure: RemudaError | None = None
        async with AsyncExitStack() as stack:
            for supplier in (*left[turn:], *left[:turn]):
                try:
                    stream = await stack.enter_async_context(supplier.opened(offset, avoid))
                except (RegistryFailed, NotFound, Unauthorized, Forbidden, Misconfigured) as error:
                    failure = failure if isinstance(failure, RegistryFailed) else error
                    continue
                mirror = stream.mirror or (supplier.name if several else "")
                yield BodyStream(stream.offset, stream.total, stream.chunks, mirror)
                return
        assert failure is not None, "at least one supplier was asked"
        raise failure


@asynccontextmanager
async def open_hubs(
    clock: Clock,
    entropy: Entropy,
    access: HubAccess,
    *,
    registries: Registries | None = None,
    retry: RetryPolicy | None = None,
    idle_read_s: float = limits.IDLE_READ_S,
) -> AsyncIterator[Hubs]:
    """Connections are gone when the block ends."""
    keys = RegistryKeys(access.credentials, Keychain(docker_config_files(access.env), access.env))
    async with open_client(
        clock, entropy, registries=registries, keys=keys, retry=retry, idle_read_s=idle_read_s
    ) as client:
        yield Hubs(client, access)
