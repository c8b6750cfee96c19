"""Links to pictures and sounds: refused unless they are allowed, and then fetched within bounds, from where
they may lead to. What is relayed and what is translated have the content, never the link."""

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import SocketAttribute, SocketStream

from remuda.core.reach import AddressRange
from remuda.gateway.inference import link_fetch
from remuda.gateway.inference.link_fetch import open_link_fetcher
from remuda.inference.answers import ByteSink
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest
from tests.integration.api.openai.asking import CHAT
from tests.support.plain_http import PLAIN
from tests.support.scripted_upstreams import Gateway, gateway, hello, serving

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG" + bytes(range(256))
OK = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nConnection: close\r\n\r\n"
PAGES: Mapping[str, bytes] = {
    "/cat.png": OK.format("image/png").encode() + PNG,
    "/call.mp3": OK.format("audio/mpeg; x=y").encode() + PNG,
    "/page": OK.format("text/html").encode() + b"<html>",
    "/empty.png": OK.format("image/png").encode(),
    "/moved": b"HTTP/1.1 302 Found\r\nLocation: /cat.png\r\nContent-Length: 0\r\n\r\n",
    "/round": b"HTTP/1.1 302 Found\r\nLocation: /round\r\nContent-Length: 0\r\n\r\n",
    "/inward": b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/secrets\r\nContent-Length: 0\r\n\r\n",
    "/file": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    "/none": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "/noise": b"noise",
    "/cut.png": b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 99\r\n\r\nshort",
}


@asynccontextmanager
async def pages(asked: list[str]) -> AsyncIterator[str]:
    """A server that notes what it is asked for; `/slow` and `/endless.png` never end."""

    async def answer(client: SocketStream) -> None:
        async with client:
            path = (await client.receive()).split()[1].decode()
            asked.append(path)
            if path == "/slow":
                await anyio.sleep_forever()
            try:
                await client.send(PAGES.get(path, PAGES["/cat.png"]))
                while path == "/endless.png":
                    await client.send(bytes(1 << 20))
            except anyio.BrokenResourceError:
                pass

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as server,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(server.serve, answer)
        yield f"http://127.0.0.1:{server.extra(SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def fetching(named_from: AddressRange) -> AsyncIterator[Gateway]:
    async with open_link_fetcher(named_from) as links, serving(gateway(links=links)) as served:
        yield served


def asking(*parts: Any) -> Mapping[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], "kept": [1]}


def image(url: str) -> Mapping[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


async def ask(served: Gateway, *parts: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, verify=PLAIN, timeout=20) as client:
        return await client.post(served.url + CHAT, json=asking(*parts))


@pytest.mark.parametrize(
    "part",
    [image("http://127.0.0.1:1/x.png"), {"type": "audio_url", "audio_url": {"url": "https://a.test/x.mp3"}}],
)
async def test_links_are_refused_unless_they_are_allowed(served: Gateway, part: Any) -> None:
    refused = await ask(served, {"type": "text", "text": "look"}, part)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, f"messages[0].content[1].{part['type']}")
    assert "links are not fetched here" in error["message"]


async def test_content_takes_the_place_of_links_in_what_backends_get() -> None:
    seen, asked = list[InferenceCall](), list[str]()

    async def remember(call: InferenceCall, sink: ByteSink) -> None:
        seen.append(call)
        await hello(call, sink)

    async with fetching(AddressRange.LOOPBACK) as served, pages(asked) as url:
        served.upstreams.script = remember
        sound = {"type": "audio_url", "audio_url": {"url": f"{url}/call.mp3"}}
        assert (await ask(served, image(f"{url}/moved"), sound)).status_code == 200
    assert asked == ["/moved", "/cat.png", "/call.mp3"]
    (call,) = seen
    content = base64.b64encode(PNG).decode()
    relayed = json.loads(call.body)
    assert relayed == asking(
        image(f"data:image/png;base64,{content}"),
        {"type": "input_audio", "input_audio": {"data": content, "format": "mp3"}},
    )
    assert isinstance(call.request, ChatRequest)
    parts = call.request.messages[0].content
    assert isinstance(parts, list)
    assert content.encode() in bytes(parts[0].image_url)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/page", "leads to text/html"),
        ("/call.mp3", "leads to audio/mpeg"),
        ("/empty.png", "empty file"),
        ("/none", "answered 404"),
        ("/round", "redirects more than"),
        ("/inward", "169.254.169.254, a link-local address"),
        ("/file", "something else than a web address"),
        ("/noise", "cannot be fetched"),
        ("/cut.png", "cannot be fetched"),
    ],
)
async def test_what_a_link_does_not_lead_to_is_told(path: str, words: str) -> None:
    async with fetching(AddressRange.LOOPBACK) as served, pages([]) as url:
        refused = await ask(served, image(url + path))
        assert not served.ledger.own()
    assert (refused.status_code, refused.json()["error"]["param"]) == (
        400,
        "messages[0].content[0].image_url",
    )
    assert words in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:{}",
        "localhost:{}",
        "[::1]:{}",
        "0.0.0.0:{}",
        "2130706433:{}",
        "169.254.169.254",
        "[::ffff:127.0.0.1]:{}",
    ],
)
async def test_strangers_cannot_have_this_machine_asked(host: str) -> None:
    asked = list[str]()
    async with fetching(AddressRange.ORDINARY) as served, pages(asked) as url:
        refused = await ask(served, image(f"http://{host.format(url.rpartition(':')[2])}/cat.png"))
    assert (refused.status_code, asked) == (400, [])
    assert "cannot be fetched: " in refused.json()["error"]["message"]


async def test_what_is_too_large_is_not_read_to_its_end() -> None:
    async with fetching(AddressRange.LOOPBACK) as served, pages([]) as url:
        refused = await ask(served, image(f"{url}/endless.png"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")


async def test_what_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_fetch, "WHOLE_S", 0.2)
    async with fetching(AddressRange.LOOPBACK) as served, pages([]) as url:
        refused = await ask(served, image(f"{url}/slow"))
    assert (refused.status_code, "did not come" in refused.json()["error"]["message"]) == (400, True)


async def test_no_more_than_a_few_requests_fetch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_fetch, "REQUESTS_MAX", 0)
    async with fetching(AddressRange.LOOPBACK) as served:
        assert (await ask(served, image("http://127.0.0.1:1/x.png"))).status_code == 429
