"""The file server, driven by a client that was written from the contract alone."""

import hashlib
import os
from pathlib import Path

import pytest

from remuda.worker.commands.model_files import list_models
from remuda.worker.files import limits
from tests.peers.localai_file_client import Reply, TransferFailed
from tests.support.file_server import FileServer
from tests.support.raw_http import raw_client
from tests.support.worker_http import TOKEN

pytestmark = pytest.mark.anyio

KEY = "models/qwen/sub/weights.gguf"
CONTENT = os.urandom(300_000)
SHA = hashlib.sha256(CONTENT).hexdigest()
OTHER = b"other content"
OTHER_SHA = hashlib.sha256(OTHER).hexdigest()
TOTAL = len(CONTENT)


def target(server: FileServer) -> Path:
    return server.models / "qwen/sub/weights.gguf"


async def put_part(server: FileServer, start: int, end: int, sha256: str = SHA) -> Reply:
    return await server.do(server.client.put_range, KEY, CONTENT[start:end], start, TOTAL, sha256)


async def head(server: FileServer, key: str = KEY) -> Reply:
    return await server.do(server.client.head, key)


def headers_of(reply: Reply, *names: str) -> tuple[str | None, ...]:
    return tuple(reply.headers.get(name) for name in names)


async def test_a_first_upload_arrives_whole_with_its_hash_beside_it(server: FileServer) -> None:
    assert (await head(server)).status == 404

    reply = await put_part(server, 0, TOTAL)

    assert (reply.status, reply.json) == (200, {"local_path": str(target(server))})
    assert target(server).read_bytes() == CONTENT
    assert target(server).with_name("weights.gguf.sha256").read_text() == SHA
    assert target(server).parent.stat().st_mode & 0o777 == 0o750
    assert server.left_over() == []
    there = await head(server)
    assert there.status == 200
    assert headers_of(there, "x-content-sha256", "x-local-path", "x-file-size", "accept-ranges") == (
        SHA,
        str(target(server)),
        str(TOTAL),
        "bytes",
    )
    assert "x-target-sha256" not in there.headers


async def test_a_file_in_parts_is_resumed_and_is_nothing_before_it_is_whole(server: FileServer) -> None:
    first = await put_part(server, 0, 1000)

    assert (first.status, first.body) == (308, b"")
    assert headers_of(first, "range", "x-file-size", "location") == ("bytes=0-999", "1000", None)
    partial = await head(server)
    assert headers_of(partial, "x-target-sha256", "x-file-size", "x-content-sha256") == (SHA, "1000", None)
    # No backend, no list, no report and no download shows what is not whole.
    assert not target(server).exists()
    assert [path for path in server.models.rglob("*") if path.is_file() and path.name[0] != "."] == []
    assert await server.do(server.client.list, "models/qwen") is None
    assert list_models(server.models).files == ()
    assert (await server.do(server.client.get, KEY)).status == 404

    second = await put_part(server, 1000, TOTAL)

    assert second.status == 200
    assert target(server).read_bytes() == CONTENT
    assert server.left_over() == []


async def test_a_client_skips_what_is_there_and_resumes_what_is_not(
    server: FileServer, tmp_path: Path
) -> None:
    file = tmp_path / "weights.gguf"
    file.write_bytes(CONTENT)
    await put_part(server, 0, 1000)
    server.client.log.clear()

    assert await server.do(server.client.stage, file, KEY) == str(target(server))
    assert server.client.log == [("HEAD", 200), ("HEAD", 200), ("PUT", 200)]
    server.client.log.clear()
    assert await server.do(server.client.stage, file, KEY) == str(target(server))

    assert server.client.log == [("HEAD", 200)]
    assert target(server).read_bytes() == CONTENT


async def test_a_range_that_does_not_begin_at_the_end_is_answered_with_the_end(server: FileServer) -> None:
    nothing = await put_part(server, 500, 1000)
    await put_part(server, 0, 1000)
    gap = await put_part(server, 2000, 3000)
    again = await put_part(server, 0, 1000)

    assert [reply.status for reply in (nothing, gap, again)] == [416] * 3
    assert [reply.headers["x-file-size"] for reply in (nothing, gap, again)] == ["0", "1000", "1000"]
    assert gap.headers["content-range"] == f"bytes */{TOTAL}"


async def test_the_same_content_from_the_beginning_is_answered_with_416(server: FileServer) -> None:
    await put_part(server, 0, TOTAL)

    again = await put_part(server, 0, TOTAL)

    assert (again.status, again.headers["x-file-size"]) == (416, str(TOTAL))


async def test_bytes_are_never_added_to_a_whole_file(server: FileServer) -> None:
    await server.do(server.client.put, KEY, CONTENT[:1000])

    reply = await put_part(server, 1000, TOTAL)

    assert (reply.status, reply.headers["x-file-size"]) == (416, "1000")
    assert target(server).read_bytes() == CONTENT[:1000]


async def test_a_continuation_of_another_file_is_a_conflict_and_frees_the_way(server: FileServer) -> None:
    await put_part(server, 0, 1000)

    conflict = await put_part(server, 1000, TOTAL, OTHER_SHA)

    assert conflict.status == 409
    assert (await head(server)).status == 404
    assert server.left_over() == []


async def test_other_content_from_the_beginning_replaces_a_partial_upload(server: FileServer) -> None:
    await put_part(server, 0, 1000)

    reply = await server.do(server.client.put_range, KEY, OTHER, 0, len(OTHER), OTHER_SHA)

    assert reply.status == 200
    assert target(server).read_bytes() == OTHER
    assert server.left_over() == []


async def test_a_whole_file_stays_until_what_replaces_it_is_verified(server: FileServer) -> None:
    await server.do(server.client.put, KEY, OTHER, OTHER_SHA)

    assert (await put_part(server, 0, 1000)).status == 308
    assert target(server).read_bytes() == OTHER
    assert headers_of(await head(server), "x-target-sha256", "x-file-size") == (SHA, "1000")
    assert (await put_part(server, 1000, TOTAL)).status == 200

    assert target(server).read_bytes() == CONTENT
    assert (await head(server)).headers["x-content-sha256"] == SHA


async def test_a_hash_that_does_not_match_leaves_nothing(server: FileServer) -> None:
    ranged = await put_part(server, 0, TOTAL, OTHER_SHA)
    whole = await server.do(server.client.put, KEY, CONTENT, OTHER_SHA)

    assert (ranged.status, whole.status) == (400, 400)
    assert ranged.body.startswith(b"hash mismatch")
    assert (await head(server)).status == 404
    assert [path for path in server.models.rglob("*") if path.is_file()] == []


async def test_a_body_shorter_than_its_range_is_refused_and_kept(server: FileServer) -> None:
    reply = await server.do(
        server.client.ask,
        "PUT",
        f"/v1/files/{KEY}",
        CONTENT[:1000],
        {"Content-Range": f"bytes 0-1999/{TOTAL}", "X-Content-SHA256": SHA},
    )

    assert reply.status == 400
    assert headers_of(await head(server), "x-target-sha256", "x-file-size") == (SHA, "1000")


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_body_longer_than_its_range_is_refused(server: FileServer, framing: str) -> None:
    await put_part(server, 0, 1000)
    head_lines = [
        f"PUT /v1/files/{KEY} HTTP/1.1",
        "Host: w",
        f"Authorization: Bearer {TOKEN}",
        f"Content-Range: bytes 1000-1001/{TOTAL}",
        f"X-Content-SHA256: {SHA}",
        "Content-Length: 3" if framing == "length" else "Transfer-Encoding: chunked",
        "",
        "",
    ]
    body = b"abc" if framing == "length" else b"3\r\nabc\r\n0\r\n\r\n"
    async with raw_client(server.port) as raw:
        reply = await raw.ask("\r\n".join(head_lines).encode() + body)

    assert reply.status == 400
    assert (await head(server)).headers["x-file-size"] == "1000"


@pytest.mark.parametrize(
    "given",
    [
        "bytes",
        "bytes 0-9",
        "bytes 0-9/*",
        "bytes */10",
        "bytes 9-0/10",
        "bytes 0-10/10",
        "bytes -1-9/10",
        "items 0-9/10",
        f"bytes 0-9/{1 << 60}",
        "bytes 0-9/10, 0-9/10",
    ],
)
async def test_a_malformed_range_is_refused(server: FileServer, given: str) -> None:
    reply = await server.do(
        server.client.ask, "PUT", f"/v1/files/{KEY}", b"0123456789", {"Content-Range": given}
    )

    assert (reply.status, reply.body) == (400, b"invalid Content-Range")
    assert not (server.models / "qwen").exists()


async def test_a_malformed_hash_is_refused(server: FileServer) -> None:
    assert (await server.do(server.client.put, KEY, b"x", "abc")).status == 400


async def test_a_file_of_no_length_is_sent_whole(server: FileServer, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")

    path = await server.do(server.client.stage, empty, "models/m/empty")

    assert path == str(server.models / "m/empty")
    assert (server.models / "m/empty").read_bytes() == b""
    assert (await head(server, "models/m/empty")).headers["x-content-sha256"] == hashlib.sha256().hexdigest()


async def test_a_whole_upload_replaces_and_needs_no_hash(server: FileServer) -> None:
    assert (await server.do(server.client.put, KEY, CONTENT)).status == 200
    before = target(server).stat().st_ino

    assert (await server.do(server.client.put, KEY, OTHER)).status == 200

    assert target(server).read_bytes() == OTHER
    assert target(server).stat().st_ino != before, "a file that others share by a hard link stays as it was"
    assert (await head(server)).headers["x-content-sha256"] == OTHER_SHA


async def test_ranges_without_a_hash_are_joined(server: FileServer) -> None:
    assert (await put_part(server, 0, 1000, "")).status == 308
    assert headers_of(await head(server), "x-file-size", "x-target-sha256") == ("1000", None)
    assert (await put_part(server, 1000, TOTAL, "")).status == 200

    assert target(server).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("data/jobs/out.bin", "data/jobs/out.bin"),
        ("ephemeral/inputs/0123abcd/a.wav", "staging/ephemeral/inputs/0123abcd/a.wav"),
        ("models", "staging/models"),
        ("some name with spaces/ü.bin", "staging/some name with spaces/ü.bin"),
        ("models/llama3:8b/a+b=c@d.gguf", "models/llama3:8b/a+b=c@d.gguf"),
    ],
)
async def test_prefixes_lead_to_their_folders(server: FileServer, key: str, path: str) -> None:
    reply = await server.do(server.client.put, key, b"x")

    assert reply.json == {"local_path": str(server.root / path)}
    assert (server.root / path).read_bytes() == b"x"
    assert (await server.do(server.client.get, key)).body == b"x"


async def test_a_folder_that_does_not_exist_refuses_its_prefix(server: FileServer) -> None:
    (server.root / "data").rmdir()

    for ask in (server.client.head, server.client.get):
        assert (await server.do(ask, "data/x")).status == 400
    assert (await server.do(server.client.put, "data/x", b"x")).status == 400
    assert not (server.root / "data").exists()


async def test_output_files_are_allocated_and_fetched_by_their_name(server: FileServer) -> None:
    path = Path(await server.do(server.client.temp))

    assert path.parent == server.staging
    assert path.name.startswith("localai-output-")
    assert path.suffix == ".tmp"
    output = server.staging / path.name
    assert output.read_bytes() == b""
    output.write_bytes(CONTENT)
    fetched = await server.do(server.client.get, path.name)
    assert (fetched.status, fetched.body) == (200, CONTENT)
    assert fetched.headers["content-type"] == "application/octet-stream"


async def test_a_list_has_the_content_and_nothing_of_ours(server: FileServer) -> None:
    for name in ("b.bin", "a/c.bin", "a/d.sha256", ".gitattributes"):
        await server.do(server.client.put, f"models/m/{name}", b"x")
    await server.do(server.client.put_range, "models/m/late", b"x", 0, 2, SHA)

    assert await server.do(server.client.list, "models/m") == [
        ".gitattributes",
        "a/c.bin",
        "a/d.sha256",
        "b.bin",
    ]
    assert await server.do(server.client.list, "models/m/") is not None
    (server.models / "empty").mkdir()
    assert await server.do(server.client.list, "models/empty") is None
    for missing in ("models/none", "models/m/b.bin"):
        assert (await server.do(server.client.ask, "GET", f"/v1/files-list/{missing}")).status == 404


async def test_folders_are_no_files(server: FileServer) -> None:
    (server.models / "m").mkdir()

    for key in ("models/m", "models/"):
        assert (await head(server, key)).status == 400
        assert (await server.do(server.client.get, key)).status == 400
        assert (await server.do(server.client.put, key, b"x")).status == 400
    assert (await server.do(server.client.put_range, "models/m", b"x", 0, 2, SHA)).status == 400


async def test_a_file_in_the_way_of_a_folder_is_told(server: FileServer) -> None:
    await server.do(server.client.put, "models/m", b"x")

    assert (await server.do(server.client.put, "models/m/below", b"x")).status == 400
    assert (await head(server, "models/m/below")).status == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", f"/v1/files/{KEY}", 405),
        ("PATCH", f"/v1/files/{KEY}", 405),
        ("POST", f"/v1/files/{KEY}", 404),
        ("GET", "/v1/files", 404),
        ("GET", "/v1/filesystem", 404),
        ("POST", "/v1/files-list/models", 405),
    ],
)
async def test_other_methods_and_paths(server: FileServer, method: str, path: str, status: int) -> None:
    reply = await server.do(server.client.ask, method, path)

    assert reply.status == status
    assert reply.headers["content-type"].startswith("text/plain")


async def test_nothing_is_open_without_the_token(server: FileServer) -> None:
    server.client.token = ""
    for method, path in (
        ("HEAD", f"/v1/files/{KEY}"),
        ("GET", f"/v1/files/{KEY}"),
        ("PUT", f"/v1/files/{KEY}"),
        ("POST", "/v1/files/temp"),
        ("GET", "/v1/files-list/models"),
    ):
        reply = await server.do(server.client.ask, method, path)
        assert (reply.status, reply.body) == (401, b"" if method == "HEAD" else b"unauthorized")
    assert list(server.staging.iterdir()) == []


async def test_what_a_localai_worker_left_unfinished_is_continued(server: FileServer) -> None:
    target(server).parent.mkdir(parents=True)
    target(server).write_bytes(CONTENT[:1000])
    mark = target(server).with_name("weights.gguf.sha256.target")
    mark.write_text(SHA)
    assert list_models(server.models).files == ()

    assert headers_of(await head(server), "x-target-sha256", "x-file-size") == (SHA, "1000")
    assert (await server.do(server.client.get, KEY)).status == 404
    assert (await put_part(server, 1000, TOTAL)).status == 200

    assert target(server).read_bytes() == CONTENT
    assert not mark.exists()


async def test_the_hash_that_a_localai_worker_left_is_believed_until_the_file_changes(
    server: FileServer,
) -> None:
    await server.do(server.client.put, KEY, CONTENT)
    sidecar = target(server).with_name("weights.gguf.sha256")
    target(server).write_bytes(OTHER)  # By hand; it is another file now.
    sidecar.write_text(SHA)
    assert (await head(server)).headers["x-content-sha256"] == SHA, "not older than the file: not read again"

    copied = target(server).with_name("copied")
    copied.write_bytes(b"third")
    os.utime(copied, (0, 0))  # As `cp -p` keeps the time of modification.
    copied.rename(target(server))

    assert (await head(server)).headers["x-content-sha256"] == hashlib.sha256(b"third").hexdigest()
    assert sidecar.read_text() == hashlib.sha256(b"third").hexdigest()


async def test_a_checksum_file_of_somebody_else_is_not_replaced(server: FileServer) -> None:
    listed = f"{SHA}  weights.gguf\n"
    await server.do(server.client.put, f"{KEY}.sha256", listed.encode())

    await put_part(server, 0, TOTAL)

    assert target(server).with_name("weights.gguf.sha256").read_text() == listed


async def test_a_body_that_is_too_large_is_refused_before_its_first_byte(server: FileServer) -> None:
    announced = limits.BODY_BYTES_MAX + 1
    request = (
        f"PUT /v1/files/{KEY} HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Length: {announced}\r\n\r\n"
    )
    async with raw_client(server.port) as raw:
        reply = await raw.ask(request.encode())

    assert reply.status == 500
    assert b"50 GiB" in reply.body


async def test_a_file_that_does_not_fit_is_refused_with_the_numbers(server: FileServer) -> None:
    reply = await server.do(server.client.put_range, KEY, b"x", 0, 1 << 42, SHA)

    assert reply.status == 507
    assert b"the upload of weights.gguf needs 4.0 TiB" in reply.body
    assert str(server.models).encode() in reply.body
    assert server.left_over() == []


async def test_a_refusal_is_not_tried_again(server: FileServer, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"x")

    with pytest.raises(TransferFailed, match="400"):
        await server.do(server.client.stage, file, "models/../x")


async def test_checksum_kept_beside_a_file_cannot_be_written_and_has_none_of_its_own(
    server: FileServer,
) -> None:
    await put_part(server, 0, TOTAL)
    refused = await server.do(server.client.put, f"{KEY}.sha256", OTHER_SHA.encode())
    assert refused.status == 400
    assert "weights.gguf.sha256 is where this worker keeps the checksum" in refused.body.decode()
    assert target(server).with_name("weights.gguf.sha256").read_text() == SHA

    alone = "models/qwen/list.sha256"
    assert (await server.do(server.client.put, alone, OTHER, OTHER_SHA)).status == 200
    assert (await server.do(server.client.get, alone)).body == OTHER
    assert not (server.models / "qwen/list.sha256.sha256").exists()
