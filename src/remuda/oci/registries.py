"""How registries are reached: scheme, mirrors, certificate authority. Pure."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from yarl import URL

from remuda.oci.reference import DOCKER_HUB

_API_HOSTS = {DOCKER_HUB: "registry-1.docker.io"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server that may hold a registry's images. Credentials are looked up under `registry`."""

    registry: str
    base: URL


@dataclass(frozen=True, slots=True)
class Registries:
    """`insecure` are spoken to in clear text, as loopback addresses are. `mirrors` are asked first, in order;
    each is HOST[:PORT], or a URL where the scheme matters."""

    insecure: frozenset[str] = frozenset()
    mirrors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ca: Path | None = None
    """PEM file of an authority that is trusted beside the system's."""

    def endpoints(self, registry: str) -> tuple[Endpoint, ...]:
        return tuple(self._endpoint(name) for name in (*self.mirrors.get(registry, ()), registry))

    def may_be_plain(self, url: URL) -> bool:
        """Whether clear text is acceptable to this host."""
        return is_loopback(url.host or "") or bool({url.host, url.authority} & self.insecure)

    def named(self, url: URL) -> bool:
        """Whether the settings name this host themselves."""
        places = {url.host, url.authority}
        mirrors = (self._endpoint(name).base for names in self.mirrors.values() for name in names)
        return bool(places & self.insecure) or any(mirror.authority == url.authority for mirror in mirrors)

    def _endpoint(self, name: str) -> Endpoint:
        if "://" in name:
            base = URL(name)
            return Endpoint(base.authority, base.origin())
        host = _API_HOSTS.get(name, name)
        secure = URL(f"https://{host}")
        plain = URL(f"http://{host}")
        return Endpoint(name, plain if self.may_be_plain(plain) else secure)


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
