"""TCP ports of this machine: claim one, or find a free one, with refusals a person can act on."""

import errno
import socket
from collections.abc import Iterable

from remuda.core.errors import Misconfigured

_BACKLOG = 2048
_PORT_MAX = 65535


def listen(host: str, port: int, *, setting: str = "--port") -> socket.socket:
    """A socket already listening on that address, so that nobody can take it between check and use.

    Raises Misconfigured, naming `setting`, when the address cannot be had.
    """
    if not 0 <= port <= _PORT_MAX:
        raise Misconfigured(f"{port} is not a port number", hint=f"give {setting} a number up to {_PORT_MAX}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        at_fault = "--host" if error.errno == errno.EADDRNOTAVAIL and setting == "--port" else setting
        raise Misconfigured(_why_not(host, port, error), hint=f"choose another with {at_fault}") from error


def free_port(host: str, preferred: Iterable[int] = ()) -> int:
    """The first of `preferred` that is free on `host`, else one the system picks.

    Nobody holds it when this returns: for a program that can only be told a number.
    """
    for port in preferred:
        try:
            return _probe(host, port)
        except Misconfigured:
            continue
    return _probe(host, 0)


def _probe(host: str, port: int) -> int:
    with listen(host, port) as claimed:
        number: int = claimed.getsockname()[1]
        return number


def _why_not(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use"
        case errno.EACCES:
            return f"port {port} on {host} needs rights this user does not have"
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine"
        case _:
            return f"cannot listen on port {port} of {host}: {error.strerror or error}"
