"""Where a process is reached from other machines: gRPC directly, HTTP through the worker's own server."""

from collections.abc import Callable

from remuda.worker.addresses import Advertised, joined, split
from remuda.worker.processes.model import ProcessStatus, Protocol


class ReplicaAddresses:
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
