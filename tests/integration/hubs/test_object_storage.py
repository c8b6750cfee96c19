"""Models from storage that speaks S3."""

import hashlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from obstore.store import S3Store

from remuda.core.clock import SystemClock
from remuda.core.errors import Forbidden, NotFound
from remuda.hubs.hubs import Hubs
from remuda.hubs.object_storage import Bucket, BucketSupplier, account_of
from remuda.models.source_refs import BucketObject
from remuda.oci.blobs import BlobStore
from remuda.oci.errors import RegistryFailed, Unreached
from remuda.s3 import limits
from remuda.s3.account import S3Account
from remuda.s3.client import ObjectFacts
from tests.integration.hubs.fetching import fetched, resolved, write_credentials
from tests.support.images import noise
from tests.support.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore, object_store
from tests.support.trickle import relay

pytestmark = pytest.mark.anyio

PART = noise(1_500_000, 1)
OTHER = noise(100_000, 2)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("objects")) as store:
        yield store


@pytest.fixture(scope="module")
def bucket(storage: ObjectStore) -> S3Store:
    account = S3Store(
        "models",
        endpoint=storage.endpoint,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        region="us-east-1",
        client_options={"allow_http": True},
    )
    account.put("qwen/x-00001-of-00002.gguf", PART)
    account.put("qwen/x-00002-of-00002.gguf", OTHER)
    account.put("qwen/sub/config.json", b"{}")
    return account


def account_text(endpoint: str, secret: str = SECRET_KEY) -> str:
    keys = f'access_key_id = "{ACCESS_KEY}"\nsecret_access_key = "{secret}"\n'
    return f'["s3://models"]\nendpoint = "{endpoint}"\n{keys}'


async def test_an_object_comes_with_its_other_parts_and_a_folder_whole(
    hubs: Hubs, bucket: S3Store, storage: ObjectStore, store: BlobStore, credentials: Path
) -> None:
    write_credentials(credentials, account_text(storage.endpoint))
    parts = {"x-00001-of-00002.gguf": PART, "x-00002-of-00002.gguf": OTHER}

    assert await fetched(hubs, "s3://models/qwen/x-00002-of-00002.gguf", store) == parts
    assert await fetched(hubs, "s3://models/qwen/", store) == {**parts, "sub/config.json": b"{}"}


async def test_keys_of_the_environment_are_used_and_wrong_ones_told(
    hubs: Hubs,
    bucket: S3Store,
    storage: ObjectStore,
    store: BlobStore,
    env: dict[str, str],
    credentials: Path,
) -> None:
    source = "s3://models/qwen/sub/config.json"
    env["AWS_ENDPOINT_URL"] = storage.endpoint
    with pytest.raises(Forbidden, match=r"may not be read without a key.*credentials file"):
        await resolved(hubs, source)
    env |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    assert await fetched(hubs, source, store) == {"config.json": b"{}"}
    for missing in ("s3://models/qwen/nothing.gguf", "s3://models/nothing/"):
        with pytest.raises(NotFound, match="check bucket and key"):
            await resolved(hubs, missing)
    write_credentials(credentials, account_text(storage.endpoint, "wrong-4712"))
    with pytest.raises(Forbidden, match="the secret that is used with the key rider is wrong") as refused:
        await resolved(hubs, source)
    assert 'correct secret_access_key of ["s3://models"] in the credentials file' in refused.value.hint
    assert "wrong-4712" not in str(refused.value)


async def test_what_is_wrong_with_storage_is_said_in_words(
    hubs: Hubs, bucket: S3Store, storage: ObjectStore, env: dict[str, str], credentials: Path
) -> None:
    env |= {"AWS_ENDPOINT_URL": storage.endpoint, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    env["AWS_ACCESS_KEY_ID"] = "stranger"
    with pytest.raises(Forbidden, match="knows no key stranger") as refused:
        await resolved(hubs, "s3://models/qwen/")
    assert "correct AWS_ACCESS_KEY_ID of the frontend's environment" in refused.value.hint
    env["AWS_ACCESS_KEY_ID"] = ACCESS_KEY
    with pytest.raises(NotFound, match="has no bucket nowhere"):
        await resolved(hubs, "s3://nowhere/x.gguf")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        write_credentials(credentials, account_text(place))
        with pytest.raises(Unreached, match=f"{place} cannot be reached: connection refused") as silent:
            await resolved(hubs, "s3://models/x.gguf")
    assert 'check endpoint of ["s3://models"] in the credentials file' in silent.value.hint
    write_credentials(credentials, account_text(storage.endpoint.replace("http:", "https:")))
    with pytest.raises(Unreached, match="does not speak HTTPS") as silent:
        await resolved(hubs, "s3://models/x.gguf")
    assert "try http://" in silent.value.hint


async def test_a_broken_download_is_continued_and_another_version_begun_anew(
    hubs: Hubs, bucket: S3Store, storage: ObjectStore, store: BlobStore, credentials: Path
) -> None:
    await bucket.put_async("y.gguf", PART)
    source = "s3://models/y.gguf"
    async with relay(int(storage.endpoint.rpartition(":")[2])) as link:
        write_credentials(credentials, account_text(f"http://127.0.0.1:{link.port}"))
        link.bytes_per_s, link.reset_after = 10_000_000, 700_000  # Begun anew, it would never be whole.
        assert await fetched(hubs, source, store) == {"y.gguf": PART}
        found = await resolved(hubs, source)
        store.discard(f"sha256:{hashlib.sha256(PART).hexdigest()}")
        changed = noise(len(PART), 3)
        told: list[int] = []

        def replace_in_the_middle(done: int) -> None:
            if not any(told) and done:
                bucket.put("y.gguf", changed)
            told.append(done)

        digest = await hubs.fetch(found.files[0], store, replace_in_the_middle)
        assert store.path(digest).read_bytes() == changed
    with pytest.raises(RegistryFailed):  # The relay is gone.
        await resolved(hubs, source)


async def test_only_a_large_object_that_has_not_broken_off_comes_in_large_pieces(
    hubs: Hubs, storage: ObjectStore
) -> None:
    asked: list[int] = []

    class Counted(Bucket):
        def stream(self, key: str, facts: ObjectFacts, start: int, piece_bytes: int) -> AsyncIterator[bytes]:
            asked.append(piece_bytes)
            return super().stream(key, facts, start, piece_bytes)

    account = S3Account(storage.endpoint, "models")
    bucket = Counted("models", account_of({}), account.names, SystemClock().now)
    for size, times in ((limits.SMOOTH_FROM_BYTES, 2), (limits.SMOOTH_FROM_BYTES - 1, 1)):
        supplier = BucketSupplier(hubs._client, bucket, BucketObject("models", "x"), ObjectFacts(size, ""))
        for _ in range(times):
            async with supplier.opened(0, frozenset()) as stream:
                stream.chunks()
    assert asked == [limits.SMOOTH_STREAM_BYTES, limits.STREAM_BYTES, limits.STREAM_BYTES]
