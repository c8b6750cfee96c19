"""Models from storage that speaks S3."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import S3Store

from remuda.core.errors import Forbidden, NotFound
from remuda.hubs.hubs import Hubs
from remuda.oci.blobs import BlobStore
from remuda.oci.errors import RegistryFailed
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
    with pytest.raises(Forbidden, match=r"may not be read with no key.*credentials file"):
        await resolved(hubs, source)
    env |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    assert await fetched(hubs, source, store) == {"config.json": b"{}"}
    for missing in ("s3://models/qwen/nothing.gguf", "s3://models/nothing/"):
        with pytest.raises(NotFound, match="check bucket and key"):
            await resolved(hubs, missing)
    write_credentials(credentials, account_text(storage.endpoint, "wrong"))
    with pytest.raises(Forbidden, match="with the key rider") as refused:
        await resolved(hubs, source)
    assert "wrong" not in str(refused.value)


async def test_a_broken_download_is_continued_and_another_version_begun_anew(
    hubs: Hubs, bucket: S3Store, storage: ObjectStore, store: BlobStore, credentials: Path
) -> None:
    await bucket.put_async("y.gguf", PART)
    source = "s3://models/y.gguf"
    async with relay(int(storage.endpoint.rpartition(":")[2])) as link:
        write_credentials(credentials, account_text(f"http://127.0.0.1:{link.port}"))
        link.bytes_per_s, link.reset_after = 10_000_000, 700_000  # What waits in the kernel is lost.
        assert await fetched(hubs, source, store) == {"y.gguf": PART}
        assert link.bytes_back < 1.15 * len(PART)
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
