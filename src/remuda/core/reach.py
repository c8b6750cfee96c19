"""Which addresses others may make us connect to. Pure.

Workers say where they are, registries redirect, links name hosts: each of them could point at services that
trust this machine (loopback) or its network card (link-local, where clouds keep credentials). Such an
address is dialled only for callers in that range. To be asked with the resolved address, at the moment of
dialling: a name can mean something else a second later.
"""

import socket
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address


class AddressRange(StrEnum):
    """Where an address lies, as far as that matters here."""

    ORDINARY = "ordinary"
    LOOPBACK = "loopback"  # With 0.0.0.0 and ::, by which this machine is reached as well.
    LINK_LOCAL = "link-local"
    NOWHERE = "reserved"  # Multicast, broadcast, or nothing at all.


def range_of(address: str) -> AddressRange:
    """Of an IP address as it is written, with or without brackets and a zone. NOWHERE for what is none."""
    try:
        ip: IPv4Address | IPv6Address = ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return AddressRange.NOWHERE
    if isinstance(ip, IPv6Address):
        ip = _embedded(ip) or ip
    if ip.is_loopback or ip.is_unspecified or (isinstance(ip, IPv4Address) and ip.packed[0] == 0):
        return AddressRange.LOOPBACK
    if ip.is_link_local:
        return AddressRange.LINK_LOCAL
    if ip.is_multicast or ip == IPv4Address("255.255.255.255"):
        return AddressRange.NOWHERE
    return AddressRange.ORDINARY


def refused(address: str, near: AddressRange = AddressRange.ORDINARY) -> str:
    """Why this resolved address is not dialled for a caller in the range `near`; empty: it is."""
    lies = range_of(address)
    if lies in (AddressRange.ORDINARY, near) and lies is not AddressRange.NOWHERE:
        return ""
    return f"it leads to {address}, a {lies.value} address, which is only dialled for those who are there too"


def host_and_port(address: str) -> tuple[str, int] | None:
    """The parts of HOST:PORT, an IPv6 host with or without brackets; None for any other text.

    The check of an address and the dial have to read it alike. A URL parser, for one, finds the
    host 127.0.0.1 in `name@127.0.0.1:80` and in `127.0.0.1:80#:1`.
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            return None
    if not host or not host.isprintable() or any(char in _NEVER_IN_HOSTS for char in host):
        return None
    if ":" in host and not is_ip(host):
        return None
    if not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= _PORT_MAX:
        return None
    return host, int(port)


def is_ip(host: str) -> bool:
    """Whether a host is written as an address, so that nothing is left to be resolved."""
    try:
        ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


def numeric_alias(host: str) -> str:
    """The address that a host of digits stands for, such as 127.0.0.1 for 2130706433 or 127.1; empty for a
    name, and for an address in its usual form."""
    if is_ip(host) or not host.isascii() or not host.replace(".", "").isdigit():
        return ""
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return ""


def _embedded(ip: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that the system, or a translator on the way, would connect to instead."""
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip.packed[:12] == _NAT64:
        return IPv4Address(ip.packed[12:])
    return None


_NEVER_IN_HOSTS = frozenset(" []@/\\?#")
_PORT_MAX = 65_535
_NAT64 = IPv6Address("64:ff9b::").packed[:12]
