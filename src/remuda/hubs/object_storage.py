"""Model files in storage that speaks S3."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Set
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from anyio.to_thread import run_sync
from pydantic import SecretStr

from remuda.core.errors import Forbidden, Invalid, NotFound
from remuda.hubs.credentials import SourceCredential, SourceCredentials
from remuda.hubs.model import Offer, RemoteFile, Resolved
from remuda.models.files import path_fault
from remuda.models.gguf import parts_of
from remuda.models.source_refs import BucketObject
from remuda.oci.blobs import BlobStore, OnBytes
from remuda.oci.client import RegistryClient
from remuda.oci.disk import require_headroom
from remuda.oci.errors import RegistryFailed, Unreached, VersionChanged
from remuda.oci.http_file import small_call
from remuda.oci.transport import BodyStream
from remuda.s3 import limits
from remuda.s3.account import AccountNames, S3Account, StorageFailed, StorageRefused, StorageUnreached
from remuda.s3.client import ObjectChanged, ObjectFacts, S3Storage

DEFAULT_REGION: Final = "us-east-1"
_OF_ENVIRONMENT: Final = AccountNames(
    *(
        f"{name} of the frontend's environment"
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL")
    )
)
_WHOLE_BODY: Final = timedelta(days=30)  # There is no limit on how long bytes may take, only on silence.


class ObjectStorage:
    def __init__(self, client: RegistryClient, env: Mapping[str, str]) -> None:
        self._client = client
        self._env = env

    async def resolve(self, source: BucketObject, credentials: SourceCredentials) -> Resolved:
        """An object with the other parts of its model, or all objects below a key."""
        bucket = self._bucket(source, credentials)
        if source.key.endswith("/"):
            objects = await small_call(self._client, str(source), lambda: bucket.listed(source.key))
            if not objects:
                raise NotFound(f"there is nothing below {source}", hint="check bucket and key")
            start = len(source.key)
        else:
            objects = {key: await self._facts(bucket, key) for key in parts_of(source.key)}
            start = source.key.rfind("/") + 1
        files = tuple(_remote(source.bucket, key, key[start:], facts) for key, facts in objects.items())
        revision = next(iter(objects.values())).etag.strip('"') if len(objects) == 1 else ""
        return Resolved(source, revision, files)

    def supplier(self, source: BucketObject, credentials: SourceCredentials) -> "BucketSupplier":
        return BucketSupplier(self._client, self._bucket(source, credentials), source)

    def _bucket(self, source: BucketObject, credentials: SourceCredentials) -> "Bucket":
        found = credentials.find(f"s3://{source.bucket}/{source.key}")
        account = found or account_of(self._env)
        names = _OF_ENVIRONMENT if found is None and account.access_key_id else _of_file(source.bucket)
        return Bucket(source.bucket, account, names, self._client.clock.now)

    async def _facts(self, bucket: "Bucket", key: str) -> ObjectFacts:
        return await small_call(self._client, key, lambda: bucket.facts(key))


class Bucket:
    """One bucket, as one account sees it. Its failures are those of every source."""

    def __init__(
        self, name: str, account: SourceCredential, names: AccountNames, now: Callable[[], datetime]
    ) -> None:
        self._name = name
        self._storage = S3Storage(
            S3Account(
                account.endpoint,
                name,
                account.region or DEFAULT_REGION,
                SecretStr(account.access_key_id) if account.access_key_id else None,
                account.secret_access_key if account.access_key_id else None,
                account.session_token if account.session_token.get_secret_value() else None,
                names,
            ),
            _WHOLE_BODY,
            retries=0,  # Ours are counted by the bytes that they bring.
            now=now,
        )

    async def facts(self, key: str) -> ObjectFacts:
        with self._translated(key):
            return await self._storage.facts(key)

    async def listed(self, prefix: str) -> dict[str, ObjectFacts]:
        with self._translated(prefix):
            return await self._storage.listed(prefix)

    async def stream(
        self, key: str, facts: ObjectFacts, start: int, piece_bytes: int
    ) -> AsyncIterator[bytes]:
        with self._translated(key):
            async for chunk in self._storage.stream(key, facts, start, piece_bytes):
                yield chunk

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        what = f"s3://{self._name}/{key}"
        try:
            yield
        except NotFound as error:  # With a hint it is the bucket that is not there.
            known = NotFound(error.message, hint=error.hint) if error.hint else None
            raise known or NotFound(f"there is no {what}", hint="check bucket and key") from None
        except StorageRefused as error:
            raise Forbidden(error.message, hint=error.hint) from None
        except ObjectChanged:
            raise VersionChanged(f"{what} was replaced while it was being fetched") from None
        except StorageUnreached as error:
            raise Unreached(error.message, hint=error.hint) from None
        except StorageFailed as error:
            raise RegistryFailed(error.message, hint=error.hint) from error


@dataclass(slots=True)
class BucketSupplier:
    """One object, of the version that is there when it is begun."""

    client: RegistryClient
    bucket: Bucket
    source: BucketObject
    _known: ObjectFacts | None = None
    _broken: bool = False  # It was opened before, and is again.

    @property
    def name(self) -> str:
        return str(self.source)

    async def prepare(self, store: BlobStore, checked: bool, on_bytes: OnBytes) -> Offer:
        self._known = await small_call(self.client, self.name, lambda: self.bucket.facts(self.source.key))
        await run_sync(require_headroom, store.root, self._known.size, self.name)
        return Offer(self._known.size, self._known.etag)

    @asynccontextmanager
    async def opened(self, offset: int, avoid: Set[str]) -> AsyncIterator[BodyStream]:
        known = self._known
        assert known is not None, "it was prepared"
        large = not self._broken and known.size - offset >= limits.SMOOTH_FROM_BYTES
        piece_bytes = limits.SMOOTH_STREAM_BYTES if large else limits.STREAM_BYTES
        self._broken = True
        yield BodyStream(
            offset, known.size, lambda: self.bucket.stream(self.source.key, known, offset, piece_bytes)
        )


def account_of(env: Mapping[str, str]) -> SourceCredential:
    """What the environment has for other programs; no key: public objects only."""
    return SourceCredential(
        access_key_id=env.get("AWS_ACCESS_KEY_ID", ""),
        secret_access_key=SecretStr(env.get("AWS_SECRET_ACCESS_KEY", "")),
        session_token=SecretStr(env.get("AWS_SESSION_TOKEN", "")),
        endpoint=env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL", ""),
        region=env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION", ""),
    )


def _of_file(bucket: str) -> AccountNames:
    where = f'of ["s3://{bucket}"] in the credentials file'
    return AccountNames(
        f"access_key_id {where}", f"secret_access_key {where}", f"region {where}", f"endpoint {where}"
    )


def _remote(bucket: str, key: str, name: str, facts: ObjectFacts) -> RemoteFile:
    if fault := path_fault(name):
        raise Invalid(f"s3://{bucket}/{key} cannot be used: {fault}", hint="rename the object")
    return RemoteFile(name, facts.size, "", (str(BucketObject(bucket, key)),))
