"""Where a replica is reached. Pure."""

from remuda.inference.model import Endpoint
from remuda.scheduler.model import Replica

HTTP = "http"


def endpoint_of(replica: Replica, node_address: str, token: str) -> Endpoint:
    """A worker that names no address means the one it registered."""
    return Endpoint(
        address=replica.address or node_address, protocol=replica.protocol, path=replica.path, token=token
    )
