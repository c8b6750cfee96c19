"""The way of an inference request through a frontend, with one replica in its table.

    python -m bench.gateway_frontend PORT UPSTREAM_PORT http|grpc

All that a request passes is the real thing, with keys, figures and log lines on; what it never touches
(store, bus, fleet) is left out. Prints the key to ask with.
"""

import os
import sys

import anyio
from tests.support.scripted_upstreams import gateway

from remuda.cli.running import settle
from remuda.core import log
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.gateway.server import serve
from remuda.host.ports import listen
from remuda.inference.model import Endpoint
from remuda.upstreams.grpc.upstream import GrpcUpstream
from remuda.upstreams.http.client import Pool
from remuda.upstreams.pool import OpenUpstreams

HOST = "127.0.0.1"


async def run(port: int, upstream_port: int, protocol: str) -> None:
    clock, entropy = SystemClock(), SystemEntropy()
    upstreams = OpenUpstreams(
        clock, http=Pool(), grpc_factory=lambda endpoint: GrpcUpstream(endpoint, clock, entropy)
    )
    endpoint = Endpoint(
        f"{HOST}:{upstream_port}", "" if protocol == "grpc" else protocol, token="bench-token"
    )
    served = gateway(keys_required=True)
    served.upstreams.script = lambda call, sink: upstreams.at(endpoint).serve(call, sink)
    print(served.keyring.local_secret, flush=True)
    settle()
    await serve(served.door, listen(HOST, port))


if __name__ == "__main__":
    with open(os.devnull, "w") as nowhere:
        log.configure("info", "json", nowhere)
        port, upstream_port, protocol = sys.argv[1:]
        anyio.run(run, int(port), int(upstream_port), protocol, backend_options={"use_uvloop": True})
