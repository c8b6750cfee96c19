"""Where a replica is reached. Pure."""

from remuda.fleet.model import Node
from remuda.fleet.tokens import NodeTokens
from remuda.inference.model import Endpoint
from remuda.scheduler.model import Replica

HTTP = "http"


def endpoint_of(replica: Replica, node: Node, tokens: NodeTokens) -> Endpoint:
    """A worker that names no address means the one it registered. The token is the node's own."""
    own = tokens.of(node)
    return Endpoint(
        address=replica.address or node.address,
        protocol=replica.protocol,
        path=replica.path,
        token=own.http if replica.protocol == HTTP else own.grpc,
    )


def worker_endpoint(node: Node, tokens: NodeTokens) -> Endpoint | None:
    """The node's HTTP server; None where it has told no address of one."""
    if not node.http_address:
        return None
    return Endpoint(node.http_address, HTTP, token=tokens.of(node).http)
