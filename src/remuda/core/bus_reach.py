"""The messages for a bus that a worker cannot connect to, for its own machine and its frontend. Pure."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_SCHEME = re.compile(r"\b\w+://")


@dataclass(frozen=True, slots=True)
class UnreachedBus:
    """Where no connection came about: HOST:PORT, or several with commas between them."""

    address: str
    why: str

    @classmethod
    def of(cls, servers: str, why: str) -> "UnreachedBus":
        """`servers`: one URL or several, without credentials."""
        return cls(_SCHEME.sub("", servers), why)

    def __str__(self) -> str:
        return f"cannot connect to the bus at {self.address} ({self.why})"


def seen_from_frontend(reason: str, unreached: UnreachedBus | None, bus_url: str, host: str) -> str:
    """A worker's reason, with what to do as its frontend knows it: that its bus runs, and is at `bus_url`.

    The worker reached the frontend as `host`. What is said of anything else is left as it is, and so is the
    reason of a worker that does not say which address it could not connect to.
    """
    address = urlsplit(bus_url)
    if unreached is None or unreached.address != address.netloc.rpartition("@")[2] or not address.port:
        return reason
    where = "the frontend's machine" if address.hostname == host else address.hostname
    return f"{unreached}; the bus runs: open port {address.port} on {where} (firewall)"
