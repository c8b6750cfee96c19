"""Under which addresses a frontend is reached, and from where; and what refuses a start before anything slow
is imported. The start checks it again: another process may take the folder or the port in between."""

import ipaddress
import socket
import ssl
from collections.abc import Mapping, Sequence

from remuda.assembly.settings import FrontendSettings
from remuda.core.errors import Misconfigured
from remuda.core.os_errors import os_reason
from remuda.host.folder import DataFolder
from remuda.host.ports import listen, listening_process
from remuda.store.database_url import check_kind

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_ANYWHERE = frozenset({"0.0.0.0", "::", ""})
_VIRTUAL = ("br-", "cni", "docker", "podman", "veth", "virbr")  # Networks inside one machine.


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
            probe.connect(("192.0.2.1", 9))  # An address reserved for documentation.
            address: str = probe.getsockname()[0]
        except OSError:  # There is no default route: the network may have none.
            return lan_address(_own_addresses()) or socket.gethostname()
    return address


def known_by_name_only(settings: FrontendSettings) -> bool:
    """Whether `public_url` has to use this machine's name, which others may not be able to resolve."""
    if settings.public_url or bind_host(settings) not in _ANYWHERE:
        return False
    return _outward_address() == socket.gethostname()


def lan_address(addresses: Mapping[str, Sequence[str]]) -> str:
    """The IPv4 address, by interface, under which other machines most likely reach this one; empty where
    there is none. Pure."""

    def likely(interface: str, address: ipaddress.IPv4Address) -> tuple[bool, bool, str, str]:
        return interface.startswith(_VIRTUAL), not address.is_private, interface, str(address)

    found = [
        likely(interface, address)
        for interface, texts in addresses.items()
        for address in map(ipaddress.IPv4Address, texts)
        if not address.is_loopback and not address.is_link_local
    ]
    return min(found)[3] if found else ""


def _own_addresses() -> Mapping[str, Sequence[str]]:
    import psutil

    stats = psutil.net_if_stats()
    return {
        interface: [one.address for one in addresses if one.family == socket.AF_INET]
        for interface, addresses in psutil.net_if_addrs().items()
        if interface in stats and stats[interface].isup
    }


def check_start(settings: FrontendSettings) -> None:
    """Raises Misconfigured for whatever would refuse the start later and is quickly found; where another
    process has the folder or the port, with its name."""
    check_tls(settings)
    check_origins(settings)
    if settings.database_url is not None:
        check_kind(settings.database_url.get_secret_value())
    folder = DataFolder(settings.data_dir)
    folder.check_free_for("frontend")
    try:
        listen(bind_host(settings), settings.port).close()
    except Misconfigured as error:
        holder = listening_process(settings.port)
        if not holder:
            raise
        raise Misconfigured(f"{error.message} by {holder}", hint=f"stop it, or {error.hint}") from None
    folder.prepare()


def check_origins(settings: FrontendSettings) -> None:
    """Misconfigured where every web page that a user of this machine opens would be its admin."""
    if "*" in settings.cors_origins and loopback(bind_host(settings)):
        raise Misconfigured(
            "--cors-origins * would make every web page an admin here: on loopback no keys are asked for",
            hint="name the origins, or serve the network (--lan or --host 0.0.0.0), where keys are required",
        )


def check_tls(settings: FrontendSettings) -> None:
    cert, key = settings.tls_cert, settings.tls_key
    if cert is None or key is None:
        return
    for setting, file in (("--tls-cert", cert), ("--tls-key", key)):
        try:
            file.read_bytes()
        except OSError as error:
            raise Misconfigured(
                f"HTTPS cannot be served: {setting} {file} cannot be read: {os_reason(error)}",
                hint="correct the path, or make the file readable for this user; "
                "without --tls-cert and --tls-key plain HTTP is served",
            ) from None
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key, password="")  # Else it would ask for one at the terminal.
    except OSError:  # ssl.SSLError is one.
        why = f"{cert} and {key} are not a certificate and its key, in PEM form and without a password"
        raise Misconfigured(
            f"HTTPS cannot be served: {why}", hint="set --tls-cert and --tls-key, or neither"
        ) from None
