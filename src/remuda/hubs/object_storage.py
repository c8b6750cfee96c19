"""Model files in storage that speaks S3.

Its client is loaded when it is first needed: it is large, and most fleets have no such storage.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Set
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from anyio import fail_after
from anyio.to_thread import run_sync
from pydantic import SecretStr

from remuda.core.errors import Forbidden, Invalid, Misconfigured, NotFound
from remuda.hubs.credentials import SourceCredential, SourceCredentials
from remuda.hubs.model import Offer, RemoteFile, Resolved
from remuda.models.files import FILES_MAX, path_fault
from remuda.models.gguf import parts_of
from remuda.models.source_refs import BucketObject
from remuda.oci import limits
from remuda.oci.blobs import BlobStore, OnBytes
from remuda.oci.client import RegistryClient
from remuda.oci.disk import require_headroom
from remuda.oci.errors import RegistryFailed, VersionChanged
from remuda.oci.http_file import small_call
from remuda.oci.transport import BodyStream

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

DEFAULT_REGION: Final = "us-east-1"
CHUNK_BYTES: Final = 64 << 10  # What has come of a chunk when its connection breaks is lost.
_WHOLE_REQUEST: Final = "30d"  # The library's deadline is for whole bodies; here silence alone ends one.


@dataclass(frozen=True, slots=True)
class _StoredObject:
    key: str
    size: int
    etag: str


class Bucket:
    """One bucket, as one account sees it."""

    def __init__(self, name: str, account: SourceCredential) -> None:
        self._name = name
        self._account = account
        self._where = account.endpoint or "S3"
        self._opened: S3Store | None = None

    async def head(self, key: str) -> _StoredObject:
        with self._in_our_words(key), fail_after(limits.SMALL_CALL_S):
            found = await (await self._store()).head_async(key)
        return _StoredObject(found["path"], found["size"], found["e_tag"] or "")

    async def listed(self, prefix: str) -> list[_StoredObject]:
        objects: list[_StoredObject] = []
        with self._in_our_words(prefix), fail_after(limits.SMALL_CALL_S):
            async for chunk in (await self._store()).list(prefix):
                objects += [_StoredObject(one["path"], one["size"], one["e_tag"] or "") for one in chunk]
                if len(objects) > FILES_MAX:
                    raise Invalid(f"s3://{self._name}/{prefix} has more than {FILES_MAX} objects")
        return sorted(objects, key=lambda one: one.key)

    @asynccontextmanager
    async def opened(self, key: str, offset: int, known: _StoredObject) -> AsyncIterator[BodyStream]:
        """Bytes of exactly that version from an offset on."""
        with self._in_our_words(key):
            store = await self._store()
            with fail_after(limits.SMALL_CALL_S):
                answer = (
                    await store.get_async(
                        key, options={"range": {"offset": offset}, "if_match": known.etag or None}
                    )
                    if known.size > offset
                    else None
                )

        async def chunks() -> AsyncIterator[bytes]:
            if answer is None:
                return
            pieces = aiter(answer.stream(min_chunk_size=CHUNK_BYTES))
            while True:
                with self._in_our_words(key), fail_after(limits.IDLE_READ_S):
                    piece = await anext(pieces, None)
                if piece is None:
                    return
                yield bytes(piece)

        yield BodyStream(offset, known.size, chunks)

    async def _store(self) -> "S3Store":
        if self._opened is None:
            self._opened = await run_sync(self._connected)
        return self._opened

    def _connected(self) -> "S3Store":
        from obstore.store import S3Store

        account = self._account
        config: S3Config = {"region": account.region or DEFAULT_REGION}
        if account.endpoint:
            config["endpoint"] = account.endpoint
        if account.access_key_id:
            config["access_key_id"] = account.access_key_id
            config["secret_access_key"] = account.secret_access_key.get_secret_value()
        if token := account.session_token.get_secret_value():
            config["session_token"] = token
        return S3Store(
            self._name,
            config=config,
            skip_signature=not account.access_key_id,
            client_options={
                "allow_http": account.endpoint.startswith("http://"),
                "connect_timeout": f"{limits.CONNECT_S:g}s",
                "timeout": _WHOLE_REQUEST,
            },
            retry_config={"max_retries": 0},  # Ours are counted by the bytes that they bring.
        )

    @contextmanager
    def _in_our_words(self, key: str) -> Iterator[None]:
        """The library's messages are many lines, and hold whole answers of the server."""
        from obstore import exceptions

        what = f"s3://{self._name}/{key}"
        try:
            yield
        except FileNotFoundError:
            raise NotFound(f"{self._where} has no {what}", hint="check bucket and key") from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
            used = f"the key {self._account.access_key_id}" if self._account.access_key_id else "no key"
            raise Forbidden(
                f"{self._where} does not let us read {what} with {used}",
                hint=f"put access_key_id and secret_access_key of s3://{self._name} into the "
                "credentials file",
            ) from None
        except exceptions.PreconditionError:
            raise VersionChanged(f"{what} was replaced while it was being fetched") from None
        except exceptions.UnknownConfigurationKeyError as error:
            raise Misconfigured(f"the storage of {what} is not configured rightly: {error}") from None
        except TimeoutError:
            raise RegistryFailed(f"{what}: no answer from {self._where}") from None
        except exceptions.BaseError as error:
            raise RegistryFailed(f"{what}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300] or type(error).__name__


class ObjectStorage:
    def __init__(self, client: RegistryClient, env: Mapping[str, str]) -> None:
        self._client = client
        self._env = env

    def bucket(self, source: BucketObject, credentials: SourceCredentials) -> Bucket:
        account = credentials.find(f"s3://{source.bucket}/{source.key}")
        return Bucket(source.bucket, account or account_of(self._env))

    async def resolve(self, source: BucketObject, credentials: SourceCredentials) -> Resolved:
        """An object with the other parts of its model, or all objects below a key."""
        bucket = self.bucket(source, credentials)
        if source.key.endswith("/"):
            objects = await small_call(self._client, str(source), lambda: bucket.listed(source.key))
            if not objects:
                raise NotFound(f"there is nothing below {source}", hint="check bucket and key")
            start = len(source.key)
        else:
            objects = [await self._head(bucket, key) for key in parts_of(source.key)]
            start = source.key.rfind("/") + 1
        files = tuple(_remote(source.bucket, one, one.key[start:]) for one in objects)
        return Resolved(source, objects[0].etag.strip('"') if len(objects) == 1 else "", files)

    async def _head(self, bucket: Bucket, key: str) -> _StoredObject:
        return await small_call(self._client, key, lambda: bucket.head(key))

    async def supplier(self, source: BucketObject, credentials: SourceCredentials) -> "BucketSupplier":
        return BucketSupplier(self._client, self.bucket(source, credentials), source)


@dataclass(slots=True)
class BucketSupplier:
    """One object, of the version that is there when it is begun."""

    client: RegistryClient
    bucket: Bucket
    source: BucketObject
    _known: _StoredObject | None = None

    @property
    def name(self) -> str:
        return str(self.source)

    async def prepare(self, store: BlobStore, checked: bool, on_bytes: OnBytes) -> Offer:
        self._known = await small_call(self.client, self.name, lambda: self.bucket.head(self.source.key))
        await run_sync(require_headroom, store.root, self._known.size, self.name)
        return Offer(self._known.size, self._known.etag)

    @asynccontextmanager
    async def opened(self, offset: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
        assert self._known is not None, "it was prepared"
        async with self.bucket.opened(self.source.key, offset, self._known) as stream:
            yield stream


def account_of(env: Mapping[str, str]) -> SourceCredential:
    """What the environment has for other programs; no key: what everybody may read."""
    return SourceCredential(
        access_key_id=env.get("AWS_ACCESS_KEY_ID", ""),
        secret_access_key=SecretStr(env.get("AWS_SECRET_ACCESS_KEY", "")),
        session_token=SecretStr(env.get("AWS_SESSION_TOKEN", "")),
        endpoint=env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL", ""),
        region=env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION", ""),
    )


def _remote(bucket: str, found: _StoredObject, name: str) -> RemoteFile:
    if fault := path_fault(name):
        raise Invalid(f"s3://{bucket}/{found.key} cannot be used: {fault}", hint="rename the object")
    return RemoteFile(name, found.size, "", (str(BucketObject(bucket, found.key)),))
