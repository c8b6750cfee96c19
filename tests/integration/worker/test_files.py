"""Files of a whole worker: through a real S3 server, and uploads that survive its being killed."""

import hashlib
import http.client
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import nats as nats_client
import pytest
from anyio.to_thread import run_sync
from nats.aio.client import Client
from pydantic import SecretStr

from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import NotFound
from remuda.s3 import limits
from remuda.s3.account import S3Account, StorageFailed, StorageRefused
from remuda.s3.client import ObjectChanged, ObjectFacts, S3Storage
from remuda.s3.signing import SigningKeys, object_path, signed_headers
from tests.peers.localai_file_client import LocalAiFileClient
from tests.peers.localai_frontend import LocalAiFrontend
from tests.support.nats_servers import PlainServer, plain_server
from tests.support.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore, object_store
from tests.support.processes import TOKEN, Ranch, Worker
from tests.support.raw_http import RawClient, raw_client
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

NAME = "gpu-1"
BUCKET = "localai"
CONTENT = os.urandom(6 << 20)
SHA = hashlib.sha256(CONTENT).hexdigest()
KEY = "models/qwen/weights.bin"
PART = 512 << 10


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def ranch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranch]:
    ranch = Ranch(tmp_path_factory.mktemp("ranch"))
    yield ranch
    ranch.clear()


@pytest.fixture(scope="module")
async def nats(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PlainServer]:
    async with plain_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@dataclass
class StoredWorker:
    """A worker process of a LocalAI frontend, with object storage."""

    ranch: Ranch
    frontend: LocalAiFrontend
    bus: Client
    s3: ObjectStore
    nats_url: str
    process: Worker

    @classmethod
    async def started(
        cls, ranch: Ranch, frontend: LocalAiFrontend, bus: Client, s3: ObjectStore
    ) -> "StoredWorker":
        url = str(bus.connected_url.geturl()) if bus.connected_url else ""
        worker = cls(ranch, frontend, bus, s3, url, cls._begin(ranch, frontend, s3, url))
        await run_sync(worker.process.wait_for, "ready")
        return worker

    @staticmethod
    def _begin(ranch: Ranch, frontend: LocalAiFrontend, s3: ObjectStore, nats_url: str) -> Worker:
        return ranch.worker(
            NAME,
            LOCALAI_REGISTER_TO=frontend.url,
            LOCALAI_NATS_URL=nats_url,
            LOCALAI_NODE_NAME=NAME,
            LOCALAI_STORAGE_URL=s3.endpoint,
            LOCALAI_STORAGE_BUCKET=BUCKET,
            LOCALAI_STORAGE_ACCESS_KEY=ACCESS_KEY,
            LOCALAI_STORAGE_SECRET_KEY=SECRET_KEY,
        )

    @property
    def root(self) -> Path:
        return self.ranch.folder / NAME

    @property
    def client(self) -> LocalAiFileClient:
        address = str(self.frontend.node(NAME).registrations[-1]["http_address"])
        return LocalAiFileClient(address, TOKEN)

    async def kill_and_restart(self) -> None:
        self.process.kill()
        self.process = self._begin(self.ranch, self.frontend, self.s3, self.nats_url)
        await run_sync(self.process.wait_for, "ready")

    async def ask(self, verb: str, **fields: object) -> dict[str, Any]:
        subject = f"nodes.{self.frontend.node(NAME).id}.files.{verb}"
        reply = await self.bus.request(subject, json.dumps(fields).encode(), timeout=20)
        answer = json.loads(reply.data)
        assert isinstance(answer, dict)
        return answer


@pytest.fixture(scope="module")
async def worker(ranch: Ranch, s3: ObjectStore, nats: PlainServer) -> AsyncIterator[StoredWorker]:
    async with LocalAiFrontend(token=TOKEN) as frontend:
        bus = await nats_client.connect(nats.url)
        yield await StoredWorker.started(ranch, frontend, bus, s3)
        await bus.close()


def storage(s3: ObjectStore, *, secret: str | None = None, bucket: str | None = None) -> S3Storage:
    keys = SecretStr(ACCESS_KEY), SecretStr(secret or SECRET_KEY)
    return S3Storage(S3Account(s3.endpoint, bucket or BUCKET, "us-east-1", *keys))


async def whole(store: S3Storage, key: str, start: int = 0, facts: ObjectFacts | None = None) -> bytes:
    received: list[bytes] = []

    async def give(data: bytes) -> None:
        received.append(data)

    await store.read(key, facts or await store.facts(key), start, give)
    return b"".join(received)


def fetched_plainly(s3: ObjectStore, key: str) -> bytes:
    """By a client that takes keys as they are."""
    path, host = object_path(BUCKET, key), s3.endpoint.removeprefix("http://")
    headers = signed_headers(
        "GET",
        host,
        path,
        {},
        keys=SigningKeys("us-east-1", ACCESS_KEY, SECRET_KEY),
        payload_sha256=hashlib.sha256().hexdigest(),
        now=SystemClock().now(),
    )
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer.read()
    finally:
        connection.close()


async def test_objects_are_read_in_parts_and_in_order(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PART_BYTES", 300_000)
    store, content = storage(s3), CONTENT[:2_000_001]
    await store.write("models/parts", BytesIO(content), SystemClock().now())

    assert await whole(store, "models/parts") == content
    assert await whole(store, "models/parts", 1_500_000) == content[1_500_000:]
    assert await whole(store, "models/parts", len(content)) == b""
    with pytest.raises(ObjectChanged):
        await whole(store, "models/parts", facts=ObjectFacts(len(content), '"another"'))


async def test_wrong_keys_are_refused(s3: ObjectStore) -> None:
    await storage(s3).write("models/locked", BytesIO(b"x"), SystemClock().now())
    wrong = storage(s3, secret="wrong")

    with pytest.raises(StorageRefused, match="the secret that is used with the key"):
        await wrong.facts("models/locked")
    with pytest.raises(StorageRefused):
        await wrong.write("models/locked", BytesIO(b"y"), SystemClock().now())
    with pytest.raises(StorageRefused):
        await wrong.write("ephemeral//locked", BytesIO(b"y"), SystemClock().now())
    with pytest.raises(StorageRefused):
        await whole(wrong, "models/locked", facts=ObjectFacts(1, ""))
    unsigned = S3Storage(S3Account(s3.endpoint, BUCKET))
    with pytest.raises(StorageRefused):
        await unsigned.facts("models/locked")
    with pytest.raises(NotFound):
        await storage(s3).facts("models/none")
    assert await whole(storage(s3), "models/locked") == b"x"


async def test_storage_that_does_not_answer_is_told(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETRIES_MAX", 0)
    gone = S3Storage(S3Account("http://127.0.0.1:9", BUCKET))

    with pytest.raises(StorageFailed, match=r"http://127\.0\.0\.1:9 cannot be reached: connection refused"):
        await gone.facts("x")


async def test_files_go_through_object_storage(worker: StoredWorker, s3: ObjectStore) -> None:
    """Rows A121, A156 to A159."""
    store = storage(s3)
    await store.write(KEY, BytesIO(CONTENT), SystemClock().now())

    brought = await worker.ask("ensure", key=KEY)
    assert brought == {"local_path": str(worker.root / "cache" / KEY)}
    assert (worker.root / "cache" / KEY).read_bytes() == CONTENT
    assert await worker.ask("listdir", key_prefix="models-of-nobody/") == {"error": "not found"}

    allocated = await worker.ask("temp")
    output = worker.root / "cache/staging-tmp" / Path(allocated["local_path"]).name
    output.write_bytes(b"an answer")
    staged = await worker.ask("stage", local_path=allocated["local_path"], key="ephemeral/fetch/1/out.wav")
    assert staged == {"key": "ephemeral/fetch/1/out.wav"}
    assert await whole(store, "ephemeral/fetch/1/out.wav") == b"an answer"

    # As LocalAI's frontends name outputs: with the whole path.
    named = f"ephemeral/fetch/2/{allocated['local_path']}"
    assert "//" in named
    assert await worker.ask("stage", local_path=allocated["local_path"], key=named) == {"key": named}
    assert await run_sync(fetched_plainly, s3, named) == b"an answer"

    missing = await worker.ask("ensure", key="models/none")
    assert missing["error"].startswith("not found: object models/none in bucket localai")


@pytest.mark.parametrize("cut", [1 << 20, len(CONTENT)])
async def test_an_upload_goes_on_after_the_worker_was_killed(
    worker: StoredWorker, tmp_path: Path, cut: int
) -> None:
    """In the middle, and when all bytes but the last were sent."""
    key, file = f"models/killed/{cut}.bin", tmp_path / "file"
    file.write_bytes(CONTENT)
    place = worker.root / "models/killed" / f"{cut}.bin"
    sent = min(cut, len(CONTENT) - 1)
    port = int(worker.client.address.rpartition(":")[2])
    async with raw_client(port) as raw:
        await begin_upload(raw, key, sent)
        await wait_until(lambda: arrived(place) >= sent - (2 << 20) and arrived(place) > 0)
        await worker.kill_and_restart()

    assert not place.exists()
    there = await run_sync(worker.client.head, key)
    kept = int(there.headers["x-file-size"])
    assert there.headers["x-target-sha256"] == SHA
    assert 0 < kept <= sent
    client = worker.client
    assert await run_sync(lambda: client.stage(file, key)) == str(place)

    assert client.log[-1] == ("PUT", 200)
    assert place.read_bytes() == CONTENT
    assert sent + len(CONTENT) - kept < 1.15 * len(CONTENT) + (3 << 20), "little is sent twice"
    assert {path.name for path in place.parent.iterdir()} >= {place.name, f"{place.name}.sha256"}
    assert [path for path in place.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.long
async def test_an_upload_survives_twenty_kills(worker: StoredWorker) -> None:
    """Each at a random moment: after some parts have arrived, and with one on its way."""
    total, seed = 300 << 20, os.urandom(16)
    content, sent, start, chance = seed * (total // 16), 0, 0, SystemEntropy()
    sha256, key = hashlib.sha256(content).hexdigest(), "models/often/killed.bin"
    place = worker.root / "models/often/killed.bin"
    for kill in range(20):
        end = start + int((total - start) / (20 - kill) * chance.fraction())
        async with raw_client(int(worker.client.address.rpartition(":")[2])) as raw:
            await raw.send(upload_head(key, sha256, start, total))
            while start + PART < end:
                await raw.send(content[start : start + PART])
                start, sent = start + PART, sent + PART
                await wait_until(partial(at_least, place, sha256, start), within=10, what="a part")
            await raw.send(content[start : start + PART])
            sent += PART
            await worker.kill_and_restart()
        there = await run_sync(worker.client.head, key)
        assert not place.exists()
        start = int(there.headers.get("x-file-size", "0"))
    reply = await run_sync(worker.client.put_range, key, content[start:], start, total, sha256)

    assert reply.status == 200
    assert place.read_bytes() == content
    assert sent + total - start < 1.15 * total


def at_least(place: Path, sha256: str, size: int) -> bool:
    return arrived(place, sha256) >= size


async def begin_upload(raw: RawClient, key: str, sent: int) -> None:
    with anyio.fail_after(20):
        await raw.send(upload_head(key, SHA, 0, len(CONTENT)) + CONTENT[:sent])


def upload_head(key: str, sha256: str, start: int, total: int) -> bytes:
    head = (
        f"PUT /v1/files/{key} HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Range: bytes {start}-{total - 1}/{total}\r\nX-Content-SHA256: {sha256}\r\n"
        f"Content-Length: {total - start}\r\n\r\n"
    )
    return head.encode()


def arrived(place: Path, sha256: str = SHA) -> int:
    """Bytes of a partial upload that are on the disk."""
    found = [path for path in place.parent.glob(".upload-*") if sha256 in path.name]
    return found[0].stat().st_size if found else 0
