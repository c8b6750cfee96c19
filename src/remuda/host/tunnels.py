"""Ways to HTTPS servers through a proxy, by CONNECT: the proxy passes on what it cannot read."""

import asyncio
import base64
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from remuda.core.reach import AddressRange, is_ip, range_of
from remuda.host.outbound import connected, proxy_for

_HEAD_BYTES_MAX: Final = 16 << 10
_PORT_USUAL: Final = 8080
_END: Final = b"\r\n\r\n"


class ProxyFailed(OSError):
    """The proxy does not lead there; says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.strerror = reason


class Proxy(NamedTuple):
    host: str
    port: int
    authorization: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Proxy-Authorization": f"Basic {self.authorization}"} if self.authorization else {}

    def __str__(self) -> str:
        return f"the proxy {self.host}:{self.port}"


def proxy_to(host: str) -> Proxy | None:
    """The one that the environment names for HTTPS to this host (HTTPS_PROXY, NO_PROXY). Never for this
    machine itself. ProxyFailed for an address that is none."""
    if host == "localhost" or (is_ip(host) and range_of(host) is AddressRange.LOOPBACK):
        return None
    named = proxy_for("https", host)
    return None if named is None else _parsed(named)


def _parsed(text: str) -> Proxy:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        proxy_host, port = parts.hostname or "", parts.port
    except ValueError:
        proxy_host, port = "", None
    if not proxy_host:
        raise ProxyFailed("HTTPS_PROXY is not the address of a proxy, such as http://proxy:3128")
    if parts.scheme != "http":
        raise ProxyFailed(f"HTTPS_PROXY names a proxy of the kind {parts.scheme}: only http:// is supported")
    if parts.username is None:
        return Proxy(proxy_host, port or _PORT_USUAL)
    written = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(proxy_host, port or _PORT_USUAL, base64.b64encode(written.encode()).decode())


class _Handshake(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.head: asyncio.Future[bytes] = loop.create_future()
        self._read = b""

    def data_received(self, data: bytes) -> None:
        self._read += data
        if not self.head.done() and (_END in self._read or len(self._read) > _HEAD_BYTES_MAX):
            self.head.set_result(self._read)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.head.done():
            self.head.set_exception(ConnectionResetError("it hung up"))


async def tunnel(proxy: Proxy, host: str, port: int) -> asyncio.Transport:
    """A connection to the proxy on which the server answers from now on. OSError where there is none."""
    loop = asyncio.get_running_loop()
    try:
        transport, shake = await connected(
            proxy.host,
            proxy.port,
            lambda address: loop.create_connection(lambda: _Handshake(loop), address, proxy.port),
        )
    except OSError as error:
        raise ProxyFailed(f"{proxy} cannot be reached: {error.strerror or error}") from error
    try:
        transport.write(_request(proxy, host, port))
        status_line = (await shake.head).partition(b"\r\n")[0].decode("latin-1")[:200]
    except OSError as error:
        raise ProxyFailed(f"{proxy} broke off: {error}") from error
    except BaseException:
        transport.abort()
        raise
    if status_line.split(" ")[1:2] != ["200"]:
        transport.abort()
        raise ProxyFailed(f"{proxy} does not lead to {host}: {status_line}")
    return transport


def _request(proxy: Proxy, host: str, port: int) -> bytes:
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    credentials = "".join(f"{name}: {value}\r\n" for name, value in proxy.headers.items())
    return f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{credentials}\r\n".encode()
