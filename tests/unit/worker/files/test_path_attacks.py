"""Nothing outside a worker's folders is read or written, whatever a key says, and whatever happens to the
folders while a request is carried out."""

import os
from urllib.parse import quote

import pytest

from tests.peers.localai_file_client import Reply
from tests.support.file_server import FileServer
from tests.support.path_attacks import ATTACKS, REPLACED, SECRET, HostileTree, SwapsAt, hostile_tree
from tests.support.raw_http import raw_client
from tests.support.worker_http import TOKEN

pytestmark = pytest.mark.anyio

HEAD, GET, RANGE, WHOLE = ("HEAD", b""), ("GET", b""), ("PUT", b"x"), ("PUT", b"whole")
REQUESTS = {"models/": (HEAD, GET, RANGE, WHOLE), "data/": (RANGE,), "": (GET, WHOLE)}
SHA = "0" * 64


@pytest.fixture
def tree(server: FileServer) -> HostileTree:
    return hostile_tree(server.root)


def escaped(key: str) -> str:
    """As a client sends what HTTP does not allow; what is escaped already stays as it is."""
    return quote(key, safe="/%:\\?" if "%" in key else "/:\\", errors="surrogatepass").replace("?", "%3F")


async def ask(server: FileServer, method: str, path: str, body: bytes = b"") -> Reply:
    ranged = method == "PUT" and len(body) == 1
    named = {"Content-Range": "bytes 0-0/2", "X-Content-SHA256": SHA} if ranged else {}
    return await server.do(server.client.ask, method, path, body or None, named)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_key_leads_outside(server: FileServer, tree: HostileTree, attack: str) -> None:
    for area, requests in REQUESTS.items():
        path = area + escaped(ATTACKS[attack])
        for method, body in requests:
            reply = await ask(server, method, f"/v1/files/{path}", body)
            replaces = attack in REPLACED and method == "PUT"
            assert replaces or reply.status in (400, 404, 414), (method, path, reply)
            assert SECRET not in reply.body
            assert str(tree.outside) not in reply.headers.get("x-local-path", "")
        listed = await ask(server, "GET", f"/v1/files-list/{path}")
        assert listed.status in (400, 404), (path, listed)
        assert tree.untouched()


@pytest.mark.parametrize("escape", ["%c0%ae%c0%ae%c0%afoutside", "%ff%fe", "%ed%a0%80", "a%", "%2"])
async def test_what_is_not_utf8_is_refused(server: FileServer, tree: HostileTree, escape: str) -> None:
    for method in ("HEAD", "GET", "PUT"):
        request = (
            f"{method} /v1/files/models/{escape} HTTP/1.1\r\nHost: w\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Length: 0\r\n\r\n"
        )
        async with raw_client(server.port) as raw:
            await raw.send(request.encode())
            status, _ = await raw.head()
        assert status in (400, 404) or escape in ("a%", "%2"), "a lone per cent sign is a character"
    assert tree.untouched()


@pytest.mark.parametrize("end", ["?x", "?", "x?", "#x", "#", "?#"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_what_follows_a_path_is_not_cut_off_silently(server: FileServer, method: str, end: str) -> None:
    """LocalAI's frontend does not escape it, and another file would be meant."""
    (server.models / "what").write_bytes(SECRET)
    request = f"{method} /v1/files/models/what{end} HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer {TOKEN}\r\n"
    async with raw_client(server.port) as raw:
        reply = await raw.ask(f"{request}Content-Length: 0\r\n\r\n".encode())

    assert reply.status == 400
    assert [one.read_bytes() for one in server.models.iterdir()] == [SECRET]


async def test_links_within_a_folder_are_followed(server: FileServer) -> None:
    """As people share files between models."""
    (server.models / "blobs").mkdir()
    (server.models / "blobs/b").write_bytes(b"content")
    (server.models / "m").mkdir()
    (server.models / "m/relative").symlink_to("../blobs/b")
    (server.models / "m/absolute").symlink_to(server.models / "blobs/b")
    (server.models / "n").symlink_to("m")

    for key in ("models/m/relative", "models/m/absolute", "models/n/relative"):
        assert (await server.do(server.client.get, key)).body == b"content"
    assert await server.do(server.client.list, "models/m") == ["absolute", "relative"]
    assert (await server.do(server.client.put, "models/n/new", b"x")).status == 200
    assert (server.models / "m/new").read_bytes() == b"x"


async def test_a_link_to_nothing_is_as_good_as_nothing(server: FileServer) -> None:
    (server.models / "gone").symlink_to("nowhere")

    assert (await server.do(server.client.head, "models/gone")).status == 404
    assert (await server.do(server.client.put_range, "models/gone", b"x", 0, 1)).status == 200
    assert not (server.models / "gone").is_symlink()
    assert (server.models / "gone").read_bytes() == b"x"


async def test_pipes_and_devices_are_not_opened(server: FileServer) -> None:
    os.mkfifo(server.models / "pipe")

    assert (await server.do(server.client.head, "models/pipe")).status == 400
    assert (await server.do(server.client.get, "models/pipe")).status == 400
    assert await server.do(server.client.list, "models/") is None


@pytest.mark.parametrize("method", ["HEAD", "GET", "PUT", "PUT range", "list"])
async def test_a_folder_swapped_for_a_link_at_any_moment_gains_nothing(
    server: FileServer, tree: HostileTree, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    swaps = SwapsAt(monkeypatch, server.models / "m", tree.outside)

    async def attempt() -> Reply:
        match method:
            case "list":
                return await ask(server, "GET", "/v1/files-list/models/m")
            case "PUT":
                return await server.do(server.client.put, "models/m/secret", b"overwritten")
            case "PUT range":
                return await server.do(server.client.put_range, "models/m/secret", b"overwritten", 0, 11)
            case _:
                return await ask(server, method, "/v1/files/models/m/secret")

    swaps.arm(-1)
    assert (await attempt()).status == 200
    moments = swaps.calls
    assert moments >= 1
    for moment in range(moments):
        swaps.arm(moment)
        reply = await attempt()
        assert swaps.swap_before == -1, "the swap took place"
        assert SECRET not in reply.body
        assert b"folder/secret" not in reply.body
        assert tree.untouched()
