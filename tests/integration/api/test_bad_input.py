"""Whatever is sent, the answer is a 4xx in the contract's envelope that names what is wrong, and nothing that
was there before suffers."""

import itertools
import json
import ssl
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import httpx
import pytest
from anyio.abc import SocketAttribute
from structlog.testing import capture_logs

from remuda.core import limits
from tests.support.frontends import Json, LiveFrontend, live_frontend
from tests.support.nats_servers import make_certificates
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

CHUNK = bytes(1 << 20)
CHUNKS = 100
CODES = {
    400: ["invalid"],
    404: ["not_found", "no_such_endpoint"],
    405: ["wrong_method"],
    413: ["too_large"],
    431: ["too_large"],
}
LIBRARY_WORDS = ["Input should", "Field required", "valid string", "Value error", "Expected `"]


async def register(frontend: LiveFrontend, body: bytes) -> httpx.Response:
    return await frontend.worker.post("/api/node/register", content=body)


def check_refusal(reply: httpx.Response, status: int, *words: str) -> None:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert error.keys() - {"hint"} == {"code", "message", "type", "reason"}
    of_nodes = reply.url.path.startswith(("/api/node/", "/api/nodes"))
    assert (error["code"], error["type"] == "node_error") == (status, of_nodes)
    assert error["reason"] in CODES[status], reply.text
    assert [word for word in LIBRARY_WORDS if word in error["message"]] == []
    assert [word for word in words if word not in error["message"]] == []


def written(node: Json) -> Json:
    """What the store holds of a node. How well it is heard and can be dialled changes by itself."""
    return {key: value for key, value in node.items() if key not in ("status", "remuda")}


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"not json", b"\xff\xfe{}", b'{"name": "\xff"}', b'{"name": "\\ud800"}', b"[" * 5000, b"NaN"],
)
async def test_what_is_not_json_is_refused(frontend: LiveFrontend, body: bytes) -> None:
    check_refusal(await register(frontend, body), 400, "not JSON")


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"3"])
async def test_json_that_is_no_object_is_refused(frontend: LiveFrontend, body: bytes) -> None:
    check_refusal(await register(frontend, body), 400, "message")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", 7),
        ("name", "n" * 256),
        ("name", "ö" * 128),
        ("name", "nul\0"),
        ("node_type", "toaster"),
        ("address", ""),
        ("address", "a" * 513),
        ("address", ["a"]),
        ("http_address", "a" * 513),
        ("total_ram", -1),
        ("total_ram", 2**64),
        ("total_ram", 2**63),
        ("total_ram", 1.5),
        ("total_ram", "16GB"),
        ("total_ram", True),
        ("available_disk", -1),
        ("total_vram", 10**400),
        ("gpu_vendor", "v" * 256),
        ("max_replicas_per_model", 2**31),
        ("vram_budget", 80),
        ("vram_budget", "9" * 256),
        ("labels", ["a"]),
        ("labels", {"a": 1}),
        ("machine_id", "m" * 256),
        ("remuda", "1.0"),
        ("remuda", {"boot_id": "b" * 256}),
    ],
)
async def test_a_registration_is_refused_by_the_name_of_its_field(
    frontend: LiveFrontend, field: str, value: Any
) -> None:
    body = {**frontend.registration("unlucky"), field: value}
    check_refusal(await register(frontend, json.dumps(body).encode()), 400, field)
    assert "unlucky" not in [node["name"] for node in (await frontend.admin.get("/api/nodes")).json()]


@pytest.mark.parametrize("field", ["name", "address"])
async def test_a_registration_without_what_it_needs_is_refused(frontend: LiveFrontend, field: str) -> None:
    body = {key: value for key, value in frontend.registration().items() if key != field}
    check_refusal(await register(frontend, json.dumps(body).encode()), 400, field)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/ops", {"kind": "upgrade", "backend": "x", "rolling": True}, "rolling"),
        ("/api/ops/upgrades", {"rolling": True}, "rolling"),
        ("/api/ops/op-1/retry", {"node": "a"}, "node"),
        ("/api/keys", {"name": "k", "model": ["m"]}, "model"),
        ("/api/models", {"config": "name: x", "nodes": []}, "nodes"),
        ("/api/models", {"confg": "name: x"}, "confg"),
        ("/api/models/m/unload", {"nodes": ["a"]}, "nodes"),
        ("/api/models/m/load", {"node": "a"}, "node"),
        ("/api/ops/upgrades/check", {"backend": "x"}, "backend"),
        *((f"/api/ops/op-1/{verb}", {"node": "a"}, "node") for verb in ("cancel", "pause", "resume")),
        ("/api/ops/op-1/dismiss", {"node": "a"}, "node"),
        ("/api/nodes/invites", {"name": "n", "labels": {}}, "labels"),
    ],
)
async def test_a_field_that_our_own_routes_do_not_know_is_refused_by_its_name(
    frontend: LiveFrontend, path: str, body: Json, field: str
) -> None:
    check_refusal(await frontend.admin.post(path, json=body), 400, f"'{field}'", "not a known field")


async def test_the_longest_texts_are_taken(frontend: LiveFrontend) -> None:
    node = await frontend.register("n" * 255, address="a" * 512, http_address="h" * 512, gpu_vendor="v" * 255)
    shown = await frontend.node(node["id"])
    assert (shown["name"], shown["address"]) == ("n" * 255, "a" * 512)
    await frontend.register("ö" * 127 + "o")


async def test_several_problems_are_named_together(frontend: LiveFrontend) -> None:
    body = frontend.registration(node_type="toaster", address="a" * 513)
    check_refusal(await register(frontend, json.dumps(body).encode()), 400, "node_type", "address")


async def test_a_refused_registration_leaves_the_node_as_it_was(frontend: LiveFrontend) -> None:
    node = await frontend.register(total_ram=5, labels={"a": "b"})
    before = written(await frontend.node(node["id"]))
    body = frontend.registration(node["name"], total_ram=-1)
    check_refusal(await register(frontend, json.dumps(body).encode()), 400, "total_ram")
    assert written(await frontend.node(node["id"])) == before


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("labels", {"a key": "v"}, ["'a key'", "white space"]),
        ("labels", {"": "v"}, ["key"]),
        ("labels", {"k" * 129: "v"}, ["kkk", "128"]),
        ("labels", {"k": "v" * 256}, ["'k'", "255"]),
        ("labels", {"k": "v\0"}, ["'k'", "control characters"]),
        ("labels", {"k": 1}, ["k"]),
        ("labels", ["k"], ["message"]),
        ("vram-budget", {"value": "200%"}, ["VRAM budget", "200%"]),
        ("vram-budget", {"value": "-1"}, ["VRAM budget", "80%"]),
        ("vram-budget", {"value": "plenty"}, ["VRAM budget"]),
        ("vram-budget", {"value": "9" * 256}, ["value"]),
        ("vram-budget", {"value": 80}, ["value"]),
        ("vram-budget", {}, ["value"]),
        ("max-replicas-per-model", {"value": 0}, ["value"]),
        ("max-replicas-per-model", {"value": "2"}, ["value"]),
        ("max-replicas-per-model", {"value": 2**31}, ["value"]),
        ("max-replicas-per-model", {}, ["value"]),
    ],
)
async def test_what_an_admin_cannot_set_is_refused_in_words(
    frontend: LiveFrontend, path: str, body: Json, words: list[str]
) -> None:
    node = await frontend.register(total_vram=100, available_vram=100)
    before = written(await frontend.node(node["id"]))
    reply = await frontend.admin.put(f"/api/nodes/{node['id']}/{path}", json=body)
    check_refusal(reply, 400, *words)
    assert written(await frontend.node(node["id"])) == before


async def test_a_label_key_that_cannot_be_is_refused_in_the_path_too(frontend: LiveFrontend) -> None:
    node = await frontend.register()
    for key in ("a%20b", "%00", "k" * 129):
        check_refusal(await frontend.admin.delete(f"/api/nodes/{node['id']}/labels/{key}"), 400, "label")


@pytest.mark.parametrize("body", [{"name": ""}, {"name": "x" * 101}, {"name": "a\nb"}, {}, {"name": 1}])
async def test_a_key_needs_a_name_that_can_be_shown(frontend: LiveFrontend, body: Json) -> None:
    check_refusal(await frontend.admin.post("/api/keys", json=body), 400, "name")


async def test_a_key_has_one_of_the_scopes(frontend: LiveFrontend) -> None:
    reply = await frontend.admin.post("/api/keys", json={"name": "k", "scope": "root"})
    check_refusal(reply, 400, "scope", "admin", "inference")


# Size


async def much() -> AsyncIterator[bytes]:
    for _ in range(CHUNKS):
        yield CHUNK


PATHS = ["/api/node/register", "/api/node/{id}/heartbeat", "/api/keys", "/api/nodes/{id}/labels", "/nowhere"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_of_100_mb_is_refused_by_its_announcement(frontend: LiveFrontend, path: str) -> None:
    node = await frontend.register()
    url = path.format(id=node["id"])
    length = {"Content-Length": str(CHUNKS * len(CHUNK))}
    reply = await frontend.worker.post(url, content=much(), headers=length)
    check_refusal(reply, 413, str(limits.BODY_BYTES_MAX))


@pytest.mark.parametrize("path", PATHS[:3])
async def test_a_body_of_100_mb_that_was_not_announced_is_refused_as_it_comes(
    frontend: LiveFrontend, path: str
) -> None:
    node = await frontend.register()
    reply = await frontend.worker.post(path.format(id=node["id"]), content=much())
    check_refusal(reply, 413, str(limits.BODY_BYTES_MAX))


async def test_a_body_of_just_the_limit_is_read(frontend: LiveFrontend) -> None:
    body = json.dumps(frontend.registration()).encode()
    assert (await register(frontend, body.ljust(limits.BODY_BYTES_MAX))).status_code == 201
    check_refusal(await register(frontend, body.ljust(limits.BODY_BYTES_MAX + 1)), 413)


# HTTP itself


async def spoken(frontend: LiveFrontend, sent: Iterable[bytes]) -> bytes:
    """All that is answered to these bytes until the frontend hangs up."""
    answered = b""
    with anyio.fail_after(20):
        async with await anyio.connect_tcp("127.0.0.1", frontend.port) as stream:
            try:
                for piece in sent:
                    await stream.send(piece)
                while True:
                    answered += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return answered


@pytest.mark.parametrize(
    "head",
    [
        [b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ", *[b"x" * 65536] * 200],
        [b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n", *[b"X-Many: 1\r\n" * 6000] * 200],
        [b"GET /", *[b"x" * 65536] * 200],
        [b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X-Many: 1\r\n" * 300, b"\r\n"],
        [b"GET /api/ops?" + b"a=b&" * 3000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"],
    ],
    ids=["long header", "many headers", "long path", "short headers", "long query"],
)
async def test_a_head_without_end_is_refused(frontend: LiveFrontend, head: list[bytes]) -> None:
    answered = await spoken(frontend, head)
    assert answered.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answered.partition(b"\r\n\r\n")[2])["error"]["reason"] == "too_large"


async def test_trailers_without_end_are_cut_off(frontend: LiveFrontend) -> None:
    head = b"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    answered = await spoken(frontend, [head, *[b"X-Many: 1\r\n" * 6000] * 2000])
    assert answered.count(b"HTTP/1.1 ") <= 1
    assert (await frontend.anyone.get("/healthz")).status_code == 200


async def test_a_body_without_end_is_hung_up_on(
    frontend: LiveFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINGER_S", 0.1)
    head = b"POST /api/keys HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK)
    answered = await spoken(frontend, itertools.chain([head], itertools.repeat(chunk)))
    assert answered == b"" or answered.startswith(b"HTTP/1.1 413 ")


async def test_a_head_without_end_is_refused_over_tls_too(tmp_path: Path) -> None:
    files = make_certificates(tmp_path).server
    trust = ssl.create_default_context(cafile=str(files.ca))
    async with (
        live_frontend(tmp_path, tls_cert=files.cert, tls_key=files.key) as frontend,
        httpx.AsyncClient(verify=trust, trust_env=False) as client,
    ):
        url = f"{frontend.running.url}/healthz"
        assert (await client.get(url)).status_code == 200
        check_refusal(await client.get(url, headers={"X-Long": "x" * (1 << 20)}), 431)


async def test_what_is_not_http_is_refused(frontend: LiveFrontend) -> None:
    answered = await spoken(frontend, [b"\x16\x03\x01hello\r\n\r\n"])
    assert answered.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answered.partition(b"\r\n\r\n")[2])["error"]["reason"] == "invalid"


async def test_a_caller_who_leaves_in_the_middle_is_no_bug(frontend: LiveFrontend) -> None:
    head = (
        f"POST /api/node/register HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {frontend.token}\r\n"
    )
    with capture_logs() as logs:
        async with await anyio.connect_tcp("127.0.0.1", frontend.port) as stream:
            await stream.send(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            assert stream.extra(SocketAttribute.remote_port) == frontend.port
        await wait_until(lambda: [entry for entry in logs if entry["event"] == "request_answered"])
    assert [entry["status"] for entry in logs if entry["event"] == "request_answered"] == [400]
    assert "request_failed" not in [entry["event"] for entry in logs]


async def test_an_unknown_path_is_not_found(frontend: LiveFrontend) -> None:
    for path in ("/nope", "/api", "/api/nodes/", "/api/node", "/healthz/", "/join/other.whl"):
        check_refusal(await frontend.anyone.get(path), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/api/nodes", "GET, HEAD"),
        ("OPTIONS", "/api/nodes/x/labels", "GET, HEAD, PATCH, PUT"),
        ("POST", "/api/nodes/x", "DELETE, GET, HEAD"),
        ("GET", "/api/node/register", "DELETE, POST"),
        ("PUT", "/healthz", "GET, HEAD"),
        ("TRACE", "/metrics", "GET, HEAD"),
    ],
)
async def test_another_method_is_answered_with_those_that_work(
    frontend: LiveFrontend, method: str, path: str, allowed: str
) -> None:
    reply = await frontend.anyone.request(method, path)
    check_refusal(reply, 405, method, allowed)
    assert reply.headers["allow"] == allowed


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/history?limit=many", "limit must be a whole number"),
        ("/api/history?limit=-1", "limit must be 1 or more"),
        ("/api/ops?limit=x", "limit must be a whole number"),
        ("/api/ops?state=past", "state must be"),
        ("/api/ops/events?wait_s=long", "wait_s must be a number"),
        ("/api/ops?colour=red", "unknown filter 'colour'"),
        ("/api/models?colour=red", "unknown filter 'colour'"),
        ("/api/replicas?colour=red", "unknown filter 'colour'"),
    ],
)
async def test_a_wrong_parameter_is_refused_in_words(frontend: LiveFrontend, path: str, words: str) -> None:
    check_refusal(await frontend.admin.get(path), 400, words)


async def test_paths_of_openai_are_refused_in_its_shape(frontend: LiveFrontend) -> None:
    for path in ("/v1", "/v1/", "/v1/nope"):
        error = (await frontend.anyone.get(path)).json()["error"]
        assert (error["code"], error["type"]) == ("no_such_endpoint", "invalid_request_error")


async def test_a_websocket_that_does_not_exist_is_refused_with_a_code(frontend: LiveFrontend) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/ws/nope", "/v1/realtime"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"{frontend.running.url}{path}")
            assert refused.value.status == 404
        head = "GET /ws/nope HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        answered = await spoken(frontend, [(head + key).encode()])
    assert b'"reason":"no_such_endpoint"' in answered
