"""The words for a bus that a worker cannot connect to, as its own machine and its frontend say them. Pure."""

import re
from typing import Final
from urllib.parse import urlsplit

CANNOT_CONNECT: Final = "cannot connect to the bus at "
_ONE_ADDRESS = re.compile(rf"{CANNOT_CONNECT}(?P<at>\S+:(?P<port>\d+)) \((?P<why>[^()]+)\)(; .*)?")
_SCHEME = re.compile(r"\b\w+://")


def cannot_connect(servers: str, why: str, advice: str) -> str:
    """`servers`: one URL or several, without credentials."""
    return f"{CANNOT_CONNECT}{_SCHEME.sub('', servers)} ({why}); {advice}"


def seen_from_frontend(reason: str, bus_url: str, host: str) -> str:
    """A worker's reason, with what to do as its frontend knows it: that its bus runs, and is at `bus_url`.

    The worker reached the frontend as `host`. What is said of anything else is left as it is.
    """
    found = _ONE_ADDRESS.fullmatch(reason)
    if found is None or "," in bus_url:
        return reason
    at, port, why = found["at"], found["port"], found["why"]
    told = urlsplit(bus_url)
    if at != told.netloc.rpartition("@")[2]:
        return reason
    where = "the frontend's machine" if told.hostname == host else (told.hostname or at)
    return f"{CANNOT_CONNECT}{at} ({why}); the bus runs: open port {port} on {where} (firewall)"
