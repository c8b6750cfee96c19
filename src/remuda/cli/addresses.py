"""Under which addresses a frontend is reached, and from where."""

import ipaddress
import socket

from remuda.cli.settings import FrontendSettings

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ANYWHERE = frozenset({"0.0.0.0", "::", ""})


def bind_host(settings: FrontendSettings) -> str:
    return "0.0.0.0" if settings.lan else settings.host


def loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_names(host: str, settings: FrontendSettings) -> frozenset[str]:
    """The host names by which a browser on this machine may call us while no key is asked for."""
    return _LOOPBACK_NAMES | {name.lower() for name in (host, *settings.allowed_hosts)}


def url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def public_url(settings: FrontendSettings, port: int) -> str:
    """What to tell people and other machines."""
    if settings.public_url:
        return settings.public_url.rstrip("/")
    host = bind_host(settings)
    scheme = "https" if settings.tls_cert else "http"
    return url(scheme, _outward_address() if host in _ANYWHERE else host, port)


def loopback_reaches(host: str) -> bool:
    """Whether a socket bound to `host` also answers on 127.0.0.1."""
    return host in ("0.0.0.0", "localhost", "127.0.0.1")


def _outward_address() -> str:
    """This machine's address on the way out. Connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # An address reserved for documentation: nobody's.
            address: str = probe.getsockname()[0]
        except OSError:
            return socket.gethostname()
    return address
