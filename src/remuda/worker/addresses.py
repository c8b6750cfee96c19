"""Where this worker listens, and under which addresses others reach it and its processes.

The upper half only computes. The lower half touches sockets.
"""

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio

from remuda.core import limits
from remuda.core.errors import FrontendUnreachable, Misconfigured
from remuda.core.os_errors import os_reason
from remuda.host.ports import listen
from remuda.worker.processes.model import ProcessStatus, Protocol

_PORT_MAX = 65535
_EVERYWHERE = ("", "*", "0.0.0.0", "::")
_DEFAULT_BASE_PORTS = range(limits.WORKER_PORT_DEFAULT, _PORT_MAX + 1, limits.WORKER_PORT_STEP)


@dataclass(frozen=True, slots=True)
class AddressSettings:
    """As a person wrote them, HOST:PORT each; empty: not chosen."""

    addr: str = ""
    serve_addr: str = ""
    advertise_addr: str = ""
    http_addr: str = ""
    advertise_http_addr: str = ""


@dataclass(frozen=True, slots=True)
class Advertised:
    address: str
    http_address: str


def split(text: str) -> tuple[str, int | None]:
    """Host, without brackets, and port; None where there is no valid one."""
    text = text.strip()
    # An IPv6 address without brackets is a host, however many colons it has.
    has_port = "]:" in text or text.count(":") == 1
    host, _, port = text.rpartition(":") if has_port else (text, "", "")
    number = int(port) if port.isascii() and port.isdigit() else 0
    return host.removeprefix("[").removesuffix("]"), number if 0 < number <= _PORT_MAX else None


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def chosen_base_port(settings: AddressSettings) -> int | None:
    """The first port for backends, where a person chose one."""
    return split(settings.addr)[1] or split(settings.serve_addr)[1]


def advertised(settings: AddressSettings, base_port: int, http_port: int, source_host: str) -> Advertised:
    """What to tell the frontend. Where no host was chosen it is `source_host`, our end of the way there."""
    host, port = split(settings.advertise_addr or settings.addr)
    http_host, chosen_http_port = split(settings.advertise_http_addr)
    if host in _EVERYWHERE:
        host = source_host
    if http_host in _EVERYWHERE:
        http_host = host
    return Advertised(joined(host, port or base_port), joined(http_host, chosen_http_port or http_port))


def host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def bind_host(frontend_host: str) -> str:
    """All interfaces, unless the frontend is on this very machine; the family is the frontend's."""
    version_6 = ":" in frontend_host
    if is_loopback(frontend_host):
        return "::1" if version_6 else "127.0.0.1"
    return "::" if version_6 else "0.0.0.0"


def backends_bind(settings: AddressSettings, frontend_url: str) -> str:
    """Where backends listen: on loopback only when nothing says that other machines call them."""
    host = _bind(frontend_url, settings.advertise_addr, settings.addr)
    if is_loopback(host):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def http_bind(settings: AddressSettings, frontend_url: str) -> str:
    """Where this worker's HTTP server listens, by the same rule: it is reached at the host that is advertised
    for it, which is the backends' unless it has one of its own."""
    own = settings.advertise_http_addr
    return _bind(frontend_url, own) if own else _bind(frontend_url, settings.advertise_addr, settings.addr)


def _bind(frontend_url: str, *configured: str) -> str:
    host = bind_host(host_and_port(frontend_url)[0])
    if is_loopback(host) and all(is_loopback(split(one)[0]) for one in configured if one):
        return host
    return "::" if ":" in host else "0.0.0.0"


# Sockets.


@dataclass(frozen=True, slots=True)
class Listening:
    """The HTTP server's socket, ours from now on, and the first port for backends."""

    socket: socket.socket
    base_port: int

    @property
    def http_port(self) -> int:
        number: int = self.socket.getsockname()[1]
        return number


def claim(settings: AddressSettings, frontend_url: str) -> Listening:
    """Listen one port below those for backends, which grow upward from the base port.

    Ports that were not chosen give way to their present owner, so that several workers fit on one machine. A
    chosen one that is taken raises Misconfigured and names its setting.
    """
    host = http_bind(settings, frontend_url)
    chosen = chosen_base_port(settings)
    if settings.http_addr:
        return Listening(_listen_at(settings.http_addr, host), chosen or _free_base_port(host))
    if chosen is not None:
        setting = "--addr or --http-addr" if split(settings.addr)[1] else "--serve-addr or --http-addr"
        return Listening(listen(host, chosen - 1, setting=setting), chosen)
    for base in _DEFAULT_BASE_PORTS:
        if (pair := _pair(host, base)) is not None:
            return pair
    raise Misconfigured(f"no port is free on {host}", hint="choose one with --addr HOST:PORT")


async def source_host(frontend_url: str, family: socket.AddressFamily) -> str:
    """This machine's own address on the way to the frontend, which need not be up for that."""
    host, port = host_and_port(frontend_url)
    try:
        with anyio.fail_after(limits.ROUTE_LOOKUP_S):
            found = await anyio.getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(found[0][4])  # Sends nothing; only makes the system choose a route.
            own: str = probe.getsockname()[0]
            return own.partition("%")[0]
    except TimeoutError as error:
        raise FrontendUnreachable(f"the name {host} was not resolved in time") from error
    except OSError as error:
        raise FrontendUnreachable(f"{host} cannot be reached from here: {os_reason(error)}") from error


def _listen_at(http_addr: str, otherwise: str) -> socket.socket:
    host, port = split(http_addr)
    if port is None:
        raise Misconfigured(
            f"--http-addr {http_addr!r} has no port from 1 to {_PORT_MAX}", hint="write it as HOST:PORT"
        )
    return listen(host or otherwise, port, setting="--http-addr")


def _free_base_port(host: str) -> int:
    return next((base for base in _DEFAULT_BASE_PORTS if _free(host, base)), limits.WORKER_PORT_DEFAULT)


def _pair(host: str, base: int) -> Listening | None:
    try:
        server = listen(host, base - 1)
    except Misconfigured:
        return None
    if _free(host, base):
        return Listening(server, base)
    server.close()
    return None


def _free(host: str, port: int) -> bool:
    try:
        listen(host, port).close()
    except Misconfigured:
        return False
    return True


class ReplicaAddresses:
    """Where a process is reached from other machines: gRPC directly, HTTP through the worker's own server."""

    def __init__(self, reached_at: Callable[[], Advertised]) -> None:
        """`reached_at` tells what the registration told."""
        self._reached_at = reached_at

    def address(self, replica: ProcessStatus) -> str:
        """host:port; empty while there is no process."""
        if not replica.port:
            return ""
        if replica.protocol is Protocol.HTTP:
            return self._reached_at().http_address
        return joined(split(self._reached_at().address)[0], replica.port)

    def is_at(self, replica: ProcessStatus, address: str) -> bool:
        """Whether `address` leads to it. Only the port counts: a host has many names."""
        _, port = split(address)
        return port is not None and port == split(self.address(replica))[1]
