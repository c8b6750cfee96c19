"""Which upstream an endpoint gets, and for how long."""

import pytest

from remuda.core.clock import SystemClock
from remuda.inference.answers import AnswerSink
from remuda.inference.model import InferenceCall, ReplicaEndpoint
from remuda.upstreams.http.client import Pool
from remuda.upstreams.http.upstream import HttpUpstream
from remuda.upstreams.pool import OpenUpstreams

pytestmark = pytest.mark.anyio

_HTTP = ReplicaEndpoint("127.0.0.1:1", "http", "/v1/processes/m%230")
_GRPC = ReplicaEndpoint("127.0.0.1:2")


class _Grpc:
    heard_s = 0.0

    def __init__(self, endpoint: ReplicaEndpoint) -> None:
        self.endpoint = endpoint
        self.closed = False

    async def serve(self, call: InferenceCall, sink: AnswerSink) -> None: ...

    async def aclose(self) -> None:
        self.closed = True


def _upstreams() -> OpenUpstreams:
    return OpenUpstreams(SystemClock(), http=Pool(), grpc_factory=_Grpc)


def test_each_protocol_has_its_upstream_and_each_endpoint_one() -> None:
    upstreams = _upstreams()

    assert isinstance(upstreams.at(_HTTP), HttpUpstream)
    assert isinstance(upstreams.at(_GRPC), _Grpc)
    assert upstreams.at(_HTTP) is upstreams.at(_HTTP)
    assert upstreams.at(_GRPC) is upstreams.at(_GRPC)


async def test_what_is_no_longer_routed_to_is_closed() -> None:
    upstreams = _upstreams()
    relayed, called = upstreams.at(_HTTP), upstreams.at(_GRPC)
    assert isinstance(called, _Grpc)

    await upstreams.forget({_HTTP})

    assert called.closed
    assert upstreams.at(_HTTP) is relayed
    assert upstreams.at(_GRPC) is not called


async def test_closing_closes_all() -> None:
    upstreams = _upstreams()
    called = upstreams.at(_GRPC)
    assert isinstance(called, _Grpc)

    await upstreams.aclose()

    assert called.closed
