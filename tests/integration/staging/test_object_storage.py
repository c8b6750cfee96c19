"""Models' files in object storage, as frontends put them there: real parts, and a process that is killed."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from obstore.store import S3Store
from pydantic import SecretStr

from remuda.core.clock import SystemClock
from remuda.core.ids import FrontendId
from remuda.models.file_hashes import FileHashes
from remuda.models.files import ManifestFile, NeededFile, make_manifest
from remuda.s3 import limits
from remuda.s3.account import S3Account, StorageFailed, StorageRefused
from remuda.s3.model_store import ModelObjects, StoreNotes
from remuda.s3.requests import Answer, SignedRequests
from remuda.s3.uploads import BegunUpload, FileUploads, StoredFile, UploadedFile
from remuda.scheduler.model import ADDED, StoredModel
from tests.support.clocks import HandClock
from tests.support.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore, object_store
from tests.support.plain_http import PLAIN
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

BUCKET = "fleet"
KEY = "models/org/qwen/q 4.gguf"
NOW = SystemClock().now()


class Notes:
    def __init__(self) -> None:
        self.begun: dict[str, BegunUpload] = {}

    def get(self, key: str) -> BegunUpload | None:
        return self.begun.get(key)

    def put(self, key: str, begun: BegunUpload | None) -> None:
        if begun is None:
            self.begun.pop(key, None)
        else:
            self.begun[key] = begun


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as storage:
        plain(storage).put("first", b"1")  # The bucket is made by its first object.
        yield storage


def plain(storage: ObjectStore) -> S3Store:
    return S3Store(
        BUCKET,
        endpoint=storage.endpoint,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        region="us-east-1",
        client_options={"allow_http": True},
    )


def account_of(storage: ObjectStore, secret: str) -> S3Account:
    return S3Account(storage.endpoint, BUCKET, "us-east-1", SecretStr(ACCESS_KEY), SecretStr(secret))


def requests_to(storage: ObjectStore, secret: str = SECRET_KEY) -> SignedRequests:
    return SignedRequests(account_of(storage, secret), SystemClock().now)


def a_file(folder: Path, size: int) -> UploadedFile:
    content = hashlib.shake_256(b"weights").digest(size)
    (folder / "file").write_bytes(content)
    return UploadedFile(folder / "file", size, hashlib.sha256(content).hexdigest())


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SENT_PART_BYTES", 5 << 20)  # S3 takes no smaller ones, but for the last.


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [0, 1000, 12_000_000])
async def test_file_is_put_there_with_the_hash_of_its_content(
    s3: ObjectStore, tmp_path: Path, size: int
) -> None:
    file, notes, told = a_file(tmp_path, size), Notes(), list[int]()
    uploads = FileUploads(requests_to(s3), notes)
    await uploads.upload(file, f"{KEY}.{size}", NOW, told.append)
    assert await uploads.found(f"{KEY}.{size}") == StoredFile(size, file.sha256)
    assert bytes(plain(s3).get(f"{KEY}.{size}").bytes()) == file.path.read_bytes()
    assert notes.begun == {}
    assert told == sorted(told)
    await uploads.remove(f"{KEY}.{size}")
    assert await uploads.found(f"{KEY}.{size}") is None


class Killed(SignedRequests):
    """Ends after some parts, as a process that is killed."""

    parts_left = 3
    sent = 0

    async def send(self, method: str, key: str, query: object = None, *rest: object, **more: object):  # type: ignore[no-untyped-def]
        if "partNumber" in (query or {}):  # type: ignore[operator]
            if not self.parts_left:
                raise StorageFailed("killed")
            self.parts_left -= 1
            self.sent += 1
        return await super().send(method, key, query or {}, *rest, **more)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_parts")
async def test_upload_goes_on_after_the_parts_that_have_arrived(
    s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ATTEMPTS_MAX", 1)
    file, notes = a_file(tmp_path, 22 << 20), Notes()
    account = S3Account(s3.endpoint, BUCKET, "us-east-1", SecretStr(ACCESS_KEY), SecretStr(SECRET_KEY))
    first = Killed(account, SystemClock().now)
    with pytest.raises(StorageFailed):
        await FileUploads(first, notes).upload(file, KEY, NOW, lambda _: None)
    second = Killed(account, SystemClock().now)
    second.parts_left = 100
    await FileUploads(second, notes).upload(file, KEY, NOW, lambda _: None)
    assert (first.sent, second.sent) == (3, 2)
    assert bytes(plain(s3).get(KEY).bytes()) == file.path.read_bytes()


@pytest.mark.usefixtures("small_parts")
async def test_parts_of_another_content_are_not_gone_on_with(
    s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ATTEMPTS_MAX", 1)
    file, notes = a_file(tmp_path, 16 << 20), Notes()
    account = S3Account(s3.endpoint, BUCKET, "us-east-1", SecretStr(ACCESS_KEY), SecretStr(SECRET_KEY))
    with pytest.raises(StorageFailed):
        await FileUploads(Killed(account, SystemClock().now), notes).upload(file, KEY, NOW, lambda _: None)
    file.path.write_bytes(bytes(reversed(file.path.read_bytes())))
    other = UploadedFile(file.path, file.size, hashlib.sha256(file.path.read_bytes()).hexdigest())
    store = FileUploads(requests_to(s3), notes)
    await store.upload(other, KEY, NOW, lambda _: None)
    assert bytes(plain(s3).get(KEY).bytes()) == file.path.read_bytes()
    assert await store.found(KEY) == StoredFile(other.size, other.sha256)


async def test_signed_address_is_read_without_a_key_and_in_parts(s3: ObjectStore, tmp_path: Path) -> None:
    file = a_file(tmp_path, 1000)
    await FileUploads(requests_to(s3), Notes()).upload(file, KEY, NOW, lambda _: None)
    address = requests_to(s3).address(KEY, 60)
    async with httpx.AsyncClient(trust_env=False, verify=PLAIN) as client:
        part = await client.get(address, headers={"Range": "bytes=990-"})
        assert (part.status_code, part.content) == (206, file.path.read_bytes()[990:])
        assert (await client.get(address.partition("?")[0])).status_code == 403


async def test_wrong_keys_are_refused_in_words(s3: ObjectStore) -> None:
    with pytest.raises(StorageRefused, match="access denied") as refused:
        await FileUploads(requests_to(s3, "wrong"), Notes()).found(KEY)
    assert "storage-secret-key" in refused.value.hint


# The frontends' store.


class Counted(SignedRequests):
    """Counts the bytes that are sent."""

    sent_bytes = 0

    async def send(self, *words: Any, **more: Any) -> Answer:
        self.sent_bytes += len(more.get("body", b""))
        return await super().send(*words, **more)


class Frontend:
    """Has installed the model qwen, of two files."""

    def __init__(self, storage: ObjectStore, folder: Path, name: str = "frontend-1") -> None:
        self.models = folder / "models"
        self.clock = HandClock()
        files = []
        for path in ("qwen/a.gguf", "qwen/b.json"):
            content = hashlib.shake_256(path.encode()).digest(1000)
            (self.models / path).parent.mkdir(parents=True, exist_ok=True)
            (self.models / path).write_bytes(content)
            sha256 = hashlib.sha256(content).hexdigest()
            files.append(ManifestFile(path=path, size=1000, sha256=sha256))
        self.files = tuple(files)
        kept_by = FrontendId("frontend-1")
        manifest = make_manifest(self.files)
        self.rows = [StoredModel("qwen", "name: qwen", "r1", ADDED, manifest=manifest, kept_by=kept_by)]
        self.notes = folder / "notes.json"
        self.storage = storage
        self.objects = self.made(name)

    def made(self, name: str, fleet: str = "fleet-1", secret: str = SECRET_KEY) -> ModelObjects:
        self.requests = Counted(account_of(self.storage, secret), SystemClock().now)
        return ModelObjects(
            self.requests,
            StoreNotes(self.notes, fleet),
            self.read,
            self.models,
            FileHashes(),
            frontend=FrontendId(name),
            clock=self.clock,
        )

    async def read(self) -> list[StoredModel]:
        return self.rows

    def there(self) -> set[str]:
        found = plain(self.storage).list("models/qwen")
        return {str(one["path"]) for chunk in found for one in chunk}

    async def address(self, number: int = 0) -> str:
        file = self.files[number]
        return await self.objects.address("qwen", NeededFile(file.path, file.size, file.sha256))


async def test_files_of_an_installed_model_are_stored_and_go_with_it(s3: ObjectStore, tmp_path: Path) -> None:
    frontend = Frontend(s3, tmp_path)
    assert await frontend.address() == ""
    await frontend.objects.bring_up_to_date()
    assert frontend.there() == {"models/qwen/qwen/a.gguf", "models/qwen/qwen/b.json"}
    address = await frontend.address()
    async with httpx.AsyncClient(trust_env=False, verify=PLAIN) as client:
        assert (await client.get(address)).content == (frontend.models / "qwen/a.gguf").read_bytes()

    frontend.rows = []
    await frontend.made("frontend-1", "another").bring_up_to_date()
    assert len(frontend.there()) == 2, "what was put there for one database does not go with another"
    await frontend.made("frontend-1").bring_up_to_date()  # As one that has started again.
    assert frontend.there() == set()


async def test_only_the_frontend_that_fetched_a_model_stores_it(s3: ObjectStore, tmp_path: Path) -> None:
    frontend = Frontend(s3, tmp_path, name="another")
    await frontend.objects.bring_up_to_date()
    assert frontend.there() == set()


async def test_object_of_another_content_is_not_offered_and_is_replaced(
    s3: ObjectStore, tmp_path: Path
) -> None:
    plain(s3).put("models/qwen/qwen/a.gguf", bytes(1000))  # By a LocalAI frontend, say.
    frontend = Frontend(s3, tmp_path)
    assert await frontend.address() == ""
    await frontend.objects.bring_up_to_date()
    assert await frontend.address() != ""
    frontend.rows = []
    await frontend.objects.bring_up_to_date()
    assert frontend.there() == set()


async def test_file_that_was_changed_here_is_not_stored(s3: ObjectStore, tmp_path: Path) -> None:
    frontend = Frontend(s3, tmp_path)
    (frontend.models / "qwen/a.gguf").write_bytes(bytes(1000))
    await frontend.objects.bring_up_to_date()
    assert frontend.there() == {"models/qwen/qwen/b.json"}
    frontend.rows = []
    await frontend.objects.bring_up_to_date()


async def test_renamed_model_is_copied_by_the_storage_and_not_sent_again(
    s3: ObjectStore, tmp_path: Path
) -> None:
    frontend = Frontend(s3, tmp_path)
    await frontend.objects.bring_up_to_date()
    assert frontend.requests.sent_bytes == 2000
    frontend.rows = [replace(frontend.rows[0], name="renamed")]
    await frontend.objects.bring_up_to_date()
    assert frontend.requests.sent_bytes == 2000
    assert frontend.there() == set()
    file = NeededFile(frontend.files[0].path, 1000, frontend.files[0].sha256)
    address = await frontend.objects.address("renamed", file)
    async with httpx.AsyncClient(trust_env=False, verify=PLAIN) as client:
        assert (await client.get(address)).content == (frontend.models / "qwen/a.gguf").read_bytes()
    frontend.rows = []
    await frontend.objects.bring_up_to_date()


async def test_trouble_with_the_storage_is_told_of_the_models_that_it_concerns(
    s3: ObjectStore, tmp_path: Path
) -> None:
    frontend = Frontend(s3, tmp_path)
    refused = frontend.made("frontend-1", secret="wrong")
    async with anyio.create_task_group() as tasks:
        await tasks.start(refused.run)
        await wait_until(lambda: bool(refused.trouble()), within=20, what="the refusal to be told")
        tasks.cancel_scope.cancel()
    assert "access denied" in refused.trouble()
    assert refused.state_of("qwen").startswith("its files are not in the object storage yet: access denied")
    assert refused.state_of("qwen").endswith("next attempt in 10 s")
    assert (refused.state_of("another"), refused.has("qwen")) == ("", False)

    await frontend.objects.bring_up_to_date()
    assert (frontend.objects.trouble(), frontend.objects.state_of("qwen")) == ("", "")
    assert frontend.objects.has("qwen")
    frontend.rows = []
    await frontend.objects.bring_up_to_date()
    assert not frontend.objects.has("qwen")
