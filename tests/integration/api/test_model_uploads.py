"""Uploads as clients of the tus protocol make them: over real sockets, cut where it hurts."""

import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.frontends import LiveFrontend, live_frontend
from tests.support.models import tiny_model
from tests.support.raw_http import raw_client
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
TUS = {"Tus-Resumable": "1.0.0"}
PART = {**TUS, "Content-Type": "application/offset+octet-stream"}
TINY = tiny_model().read_bytes()
UPLOADS = "/api/model-uploads"


@pytest.fixture
async def frontend(tmp_path: Path) -> AsyncIterator[LiveFrontend]:
    async with live_frontend(tmp_path / "data") as live:
        yield live


def metadata(**values: str) -> str:
    return ",".join(f"{key} {base64.b64encode(value.encode()).decode()}" for key, value in values.items())


async def begin(frontend: LiveFrontend, size: int, **values: str) -> httpx.Response:
    named = metadata(**{"filename": "tiny.gguf", **values})
    headers = {**TUS, "Upload-Length": str(size), "Upload-Metadata": named}
    return await frontend.admin.post(UPLOADS, headers=headers)


async def patch(frontend: LiveFrontend, url: str, offset: int, body: bytes, **headers: str) -> httpx.Response:
    said = {**PART, "Upload-Offset": str(offset), **headers}
    return await frontend.admin.patch(url, content=body, headers=said)


async def offset_of(frontend: LiveFrontend, url: str) -> int:
    reply = await frontend.admin.head(url, headers=TUS)
    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["cache-control"] == "no-store"
    return int(reply.headers["upload-offset"])


async def test_a_client_of_the_protocol_uploads_and_installs(frontend: LiveFrontend) -> None:
    able = await frontend.admin.options(UPLOADS)
    assert (able.status_code, able.headers["tus-version"]) == (204, "1.0.0")
    assert "termination" in able.headers["tus-extension"]

    begun = await begin(frontend, len(TINY), upload="of-a-browser")
    assert begun.status_code == 201
    url = begun.headers["location"]
    assert "upload-expires" in begun.headers
    first = await patch(frontend, url, 0, TINY[:1000])
    assert (first.status_code, first.headers["upload-offset"], first.headers["tus-resumable"]) == (
        204,
        "1000",
        "1.0.0",
    )
    assert await offset_of(frontend, url) == 1000
    assert (await begin(frontend, len(TINY), upload="of-a-browser")).headers["upload-offset"] == "1000"
    checksum = f"sha256 {base64.b64encode(hashlib.sha256(TINY[1000:]).digest()).decode()}"
    await patch(frontend, url, 1000, TINY[1000:], **{"Upload-Checksum": checksum})

    listed = (await frontend.admin.get(UPLOADS)).json()["uploads"]
    assert [(one["source"], one["complete"]) for one in listed] == [("upload:of-a-browser", True)]
    body = {"model": listed[0]["source"], "name": "uploaded"}
    op = (await frontend.admin.post("/api/models/install", json=body)).raise_for_status().json()

    async def installed() -> bool:
        return (await frontend.admin.get("/api/models/uploaded")).status_code == 200

    await wait_until(installed, within=20, what=f"operation {op['operation']['id']} to end")
    assert (await frontend.admin.get(UPLOADS)).json()["uploads"] == []
    taken = await begin(frontend, len(TINY), upload="another-upload", model="uploaded")
    assert (taken.status_code, "uploaded already" in taken.text) == (409, True)
    assert (await frontend.admin.get(UPLOADS)).json()["uploads"] == []


async def test_what_the_protocol_forbids_is_refused_with_its_status(frontend: LiveFrontend) -> None:
    url = (await begin(frontend, 100)).headers["location"]
    wrong = {"Upload-Checksum": f"sha256 {base64.b64encode(bytes(32)).decode()}"}
    answers = {
        "offset": (await patch(frontend, url, 5, b"x")).status_code,
        "too much": (await patch(frontend, url, 0, bytes(101))).status_code,
        "checksum": (await patch(frontend, url, 0, b"x", **wrong)).status_code,
        "media type": (await patch(frontend, url, 0, b"x", **{"Content-Type": "text/plain"})).status_code,
        "version": (await patch(frontend, url, 0, b"x", **{"Tus-Resumable": "0.2.0"})).status_code,
        "no version": (await frontend.admin.post(UPLOADS, headers={"Upload-Length": "1"})).status_code,
        "no length": (await frontend.admin.post(UPLOADS, headers=TUS)).status_code,
        "path": (await begin(frontend, 10, filename="../x.gguf")).status_code,
        "id": (await begin(frontend, 10, upload="../../etc")).status_code,
        "unknown": (await patch(frontend, f"{UPLOADS}/nothing-here.0123", 0, b"x")).status_code,
        "traversal": (await patch(frontend, f"{UPLOADS}/..%2F..%2Fetc.0123", 0, b"x")).status_code,
    }
    assert answers == {
        "offset": 409,
        "too much": 400,
        "checksum": 460,
        "media type": 415,
        "version": 412,
        "no version": 412,
        "no length": 400,
        "path": 400,
        "id": 400,
        "unknown": 404,
        "traversal": 404,
    }
    assert await offset_of(frontend, url) == 0


async def test_an_upload_can_be_removed(frontend: LiveFrontend) -> None:
    url = (await begin(frontend, 100, upload="unwanted")).headers["location"]
    await patch(frontend, url, 0, b"abc")
    assert (await frontend.admin.delete(url, headers=TUS)).status_code == 204
    assert (await frontend.admin.head(url)).status_code == 404
    assert not list((frontend.data_dir / "model-store" / "uploads").glob("*"))


async def test_a_connection_that_breaks_loses_nothing_that_arrived(frontend: LiveFrontend) -> None:
    """Also where the length that was announced never comes."""
    url = (await begin(frontend, 100_000)).headers["location"]
    head = (
        f"PATCH {url} HTTP/1.1\r\nHost: 127.0.0.1\r\nTus-Resumable: 1.0.0\r\nUpload-Offset: 0\r\n"
        "Content-Type: application/offset+octet-stream\r\nContent-Length: 100000\r\n\r\n"
    )
    async with raw_client(frontend.port) as client:
        await client.send(head.encode() + bytes(60_001))

        async def arrived() -> bool:  # What a reset overtakes is lost on the way.
            return await offset_of(frontend, url) > 0

        await wait_until(arrived, within=20, what="some bytes to arrive")
        client.reset()
    at = await offset_of(frontend, url)
    reply = await patch(frontend, url, at, bytes(100_000 - at))
    while reply.status_code == 409:  # The rest of what was cut was still being written.
        at = await offset_of(frontend, url)
        reply = await patch(frontend, url, at, bytes(100_000 - at))
    assert (reply.status_code, await offset_of(frontend, url)) == (204, 100_000)


async def test_a_newer_part_takes_over_from_one_that_hangs(frontend: LiveFrontend) -> None:
    url = (await begin(frontend, 1000)).headers["location"]
    head = (
        f"PATCH {url} HTTP/1.1\r\nHost: 127.0.0.1\r\nTus-Resumable: 1.0.0\r\nUpload-Offset: 0\r\n"
        "Content-Type: application/offset+octet-stream\r\nContent-Length: 1000\r\n\r\n"
    )
    async with raw_client(frontend.port) as client:
        await client.send(head.encode() + bytes(400))

        async def arrived() -> bool:
            return await offset_of(frontend, url) == 400

        await wait_until(arrived, within=20, what="the first part to arrive")
        assert (await patch(frontend, url, 400, bytes(600))).status_code == 204
        assert (await client.reply()).status == 409


async def test_uploads_need_an_admins_key(tmp_path: Path) -> None:
    async with live_frontend(tmp_path / "data", host="0.0.0.0") as live:
        for method, path in (("POST", UPLOADS), ("GET", UPLOADS), ("PATCH", f"{UPLOADS}/some-upload.00")):
            reply = await live.anyone.request(method, path, headers=PART)
            assert reply.status_code == 401, (method, reply.text)
        assert (await begin(live, 10)).status_code == 201
        file = tmp_path / "secret.gguf"
        file.write_bytes(TINY)
        asked = {"model": f"file://{file}"}
        refused = await live.admin.post("/api/models/install", json=asked)
        assert refused.status_code == 403
        assert "--allow-local-sources" in refused.text
