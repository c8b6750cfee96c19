"""Asking a server what it is, and which models it has. Redirects are not followed: they would take its key
elsewhere."""

import asyncio
import os
import ssl
from collections.abc import Mapping, Sequence
from typing import Final

import aiohttp
import anyio
import msgspec

from remuda.host.outbound import NodeResolver
from remuda.host.tunnels import Proxy, ProxyFailed, proxy_to
from remuda.servers.model import Server, ServerKind, ServerUnusable, ServerUrl

_ANSWER_S: Final = 5.0
_BODY_BYTES_MAX: Final = 4 << 20
_ANTHROPIC_VERSION: Final = "2023-06-01"
_KEY_REFUSED: Final = (401, 403)


class TooSlow(ServerUnusable):
    """It did not answer in time, which a busy server may do once."""


class _Named(msgspec.Struct):
    id: str = ""
    name: str = ""
    model: str = ""
    type: str = ""


class _Listing(msgspec.Struct):
    """OpenAI's, Anthropic's or Ollama's."""

    data: list[_Named] | None = None
    models: list[_Named] | None = None
    has_more: bool | None = None


class _Error(msgspec.Struct):
    type: str = ""


class _Version(msgspec.Struct):
    version: str
    remuda: str = ""


_LISTING: Final = msgspec.json.Decoder(_Listing)
_ERROR: Final = msgspec.json.Decoder(_Error)
_VERSION: Final = msgspec.json.Decoder(_Version)


def proxy_of(url: ServerUrl) -> Proxy | None:
    """Through which it is asked. ServerUnusable for a setting that names none."""
    try:
        return proxy_to(url.host) if url.encrypted else None
    except ProxyFailed as error:
        raise ServerUnusable(f"{url.address} cannot be reached: {error.strerror}") from None


class Prober:
    """`answer_s` is how long an answer may take, all of it."""

    def __init__(self, *, answer_s: float = _ANSWER_S) -> None:
        self._answer_s = answer_s
        self._tls: ssl.SSLContext | None = None  # Made when it is first needed: it reads all certificates.

    async def models(self, server: Server) -> tuple[str, ...]:
        """The names of its models, sorted. ServerUnusable with the reason; TooSlow without an answer."""
        path = "/api/tags" if server.kind is ServerKind.OLLAMA else "/v1/models"
        status, body = await self._get(server.url, path, _headers(server.kind, server.key))
        if status in _KEY_REFUSED:
            raise _key_refused(server.key, status)
        if status != 200:
            raise ServerUnusable(f"{path} was answered with {_status(status)}")
        listing = _listing(body)
        if listing is None:
            raise ServerUnusable(f"what {path} was answered with is no list of models")
        return _names(listing)

    async def kind(self, url: ServerUrl, key: str) -> ServerKind:
        """Which API it speaks. ServerUnusable when it is none of those known."""
        status, body = await self._get(url, "/api/version", _headers(ServerKind.OLLAMA, key))
        version = _version(body) if status == 200 else None
        if version is not None:
            return ServerKind.OPENAI if version.remuda else ServerKind.OLLAMA
        status, body = await self._get(url, "/v1/models", _headers(ServerKind.OPENAI, key))
        if (listing := _listing(body)) is not None and status == 200:
            return ServerKind.OPENAI if listing.has_more is None else ServerKind.ANTHROPIC
        if _is_anthropic_error(body):
            return ServerKind.ANTHROPIC
        if status in _KEY_REFUSED:
            raise _key_refused(key, status)
        raise ServerUnusable(
            f"it speaks none of the APIs known: /v1/models was answered with {_status(status)}",
            hint="is the address right? --kind openai, ollama or anthropic says which API it is",
        )

    async def _get(self, url: ServerUrl, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        if url.encrypted and self._tls is None:
            self._tls = ssl.create_default_context()
        connector = aiohttp.TCPConnector(
            resolver=NodeResolver(), force_close=True, ssl=True if self._tls is None else self._tls
        )
        try:
            proxy = proxy_of(url)
            with anyio.fail_after(self._answer_s):
                async with (
                    aiohttp.ClientSession(
                        connector=connector, cookie_jar=aiohttp.DummyCookieJar()
                    ) as session,
                    session.get(
                        url.api(path),
                        headers=headers,
                        allow_redirects=False,
                        proxy=proxy and f"http://{proxy.host}:{proxy.port}",
                        proxy_headers=proxy.headers if proxy else None,
                    ) as answer,
                ):
                    if 300 <= answer.status < 400:
                        raise _redirected(path, answer.headers.get("Location", ""))
                    return answer.status, await _bounded(answer)
        except TimeoutError:
            raise TooSlow(f"it did not answer within {self._answer_s:g} s") from None
        except aiohttp.ClientHttpProxyError as error:
            words = f"{proxy} answers {error.status} {error.message}"
            raise ServerUnusable(f"{url.address} cannot be reached: {words}"[:300]) from None
        except aiohttp.ClientProxyConnectionError:
            raise ServerUnusable(f"{url.address} cannot be reached: {proxy} does not answer") from None
        except aiohttp.ClientConnectorError as error:
            failed = error.os_error  # Of several addresses the words are Python's.
            plain = failed.errno and failed.errno > 0 and not isinstance(failed, ssl.SSLError)
            words = os.strerror(failed.errno) if plain and failed.errno else str(failed)
            raise ServerUnusable(f"{url.address} cannot be reached: {words}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ServerUnusable(f"it does not answer as a web server does: {error}"[:300]) from None


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    pieces, size = list[bytes](), 0
    async for piece in answer.content.iter_any():
        size += len(piece)
        if size > _BODY_BYTES_MAX:
            raise ServerUnusable(f"its answer exceeds {_BODY_BYTES_MAX >> 20} MiB")
        pieces.append(piece)
    return b"".join(pieces)


def _headers(kind: ServerKind, key: str) -> dict[str, str]:
    headers = {"Accept": "application/json", "X-Remuda-Own-Models": "1"}
    if kind is ServerKind.ANTHROPIC:
        headers |= {"anthropic-version": _ANTHROPIC_VERSION}
        return headers | ({"x-api-key": key} if key else {})
    return headers | ({"Authorization": f"Bearer {key}"} if key else {})


def _names(listing: _Listing) -> tuple[str, ...]:
    """Sorted. Names that could not be shown are left out."""
    found = listing.data if listing.data is not None else listing.models or []
    names = (one.id or one.name or one.model for one in found)
    return tuple(sorted({name for name in names if name and len(name) <= 300 and name.isprintable()}))


def _listing(body: bytes) -> _Listing | None:
    try:
        listing = _LISTING.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return None if listing.data is None and listing.models is None else listing


def _version(body: bytes) -> _Version | None:
    try:
        return _VERSION.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _is_anthropic_error(body: bytes) -> bool:
    """At its top it says that it is one, which OpenAI's errors do not."""
    try:
        return _ERROR.decode(body).type == "error"
    except (msgspec.DecodeError, RecursionError):
        return False


def _key_refused(key: str, status: int) -> ServerUnusable:
    words = "refuses the key" if key else "requires a key"
    return ServerUnusable(f"it {words} ({_status(status)})", hint="give it one that it takes, with --key -")


def _redirected(path: str, location: str) -> ServerUnusable:
    return ServerUnusable(
        f"{path} leads on to {location[:200] or 'another address'}, which is not followed",
        hint="adopt the server by the address that it leads to",
    )


def _status(status: int) -> str:
    return f"HTTP status {status}"


USUAL_PORTS: Final[Mapping[int, str]] = {
    11434: "Ollama",
    1234: "LM Studio",
    8000: "vLLM",
    8080: "llama-server or LocalAI",
    1337: "Jan",
    5000: "TabbyAPI",
    30000: "SGLang",
    4000: "LiteLLM",
}


class ScannedServer(msgspec.Struct, frozen=True):
    """A server that a scan has found. `models`: as it lists them; `reason`: why it listed none."""

    url: ServerUrl
    usual: str  # What usually listens there.
    kind: ServerKind | None = None
    models: tuple[str, ...] = ()
    reason: str = ""


_SCANS_AT_ONCE: Final = 32


async def scan(prober: Prober, hosts: Sequence[str], *, leave_out: Sequence[int]) -> list[ScannedServer]:
    """What listens at the usual ports of these hosts and speaks an API that is known."""
    found: list[ScannedServer] = []
    few = anyio.CapacityLimiter(_SCANS_AT_ONCE)

    async def look(host: str, port: int, usual: str) -> None:
        async with few:
            if not await _listens(host, port):
                return
            url = ServerUrl("http", host, port)
            try:
                kind = await prober.kind(url, "")
                names = await prober.models(Server("scanned", kind, url))
            except ServerUnusable as error:
                found.append(ScannedServer(url, usual, reason=error.message))
            else:
                found.append(ScannedServer(url, usual, kind, names))

    async with anyio.create_task_group() as tasks:
        for host in hosts:
            for port, usual in USUAL_PORTS.items():
                if not (port in leave_out and host in ("localhost", "127.0.0.1", "::1")):
                    tasks.start_soon(look, host, port, usual)
    return sorted(found, key=lambda one: (hosts.index(one.url.host), one.url.port))


_CONNECT_S: Final = 1.0


async def _listens(host: str, port: int) -> bool:
    try:
        with anyio.fail_after(_CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
