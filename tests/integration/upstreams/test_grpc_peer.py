"""The gRPC upstream and a backend that was written from the contract alone."""

from pathlib import Path

import pytest

from remuda.core.errors import BackendFailed
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import ReplicaEndpoint
from remuda.scheduler.model import Place
from remuda.upstreams.grpc.engine import GrpcEngine
from remuda.upstreams.http.client import Pool
from tests.integration.peers.conftest import Running, Start, start
from tests.integration.upstreams.grpc_rig import PARROT, Client, chat, upstream_at
from tests.peers.shell_backend.install import install_shell_backend

__all__ = ["start"]

pytestmark = pytest.mark.anyio

TOKEN = "a-token-of-no-value"


@pytest.fixture
async def peer(start: Start, tmp_path: Path) -> Running:
    running = start(install_shell_backend(tmp_path / "shell"), LOCALAI_GRPC_AUTH_TOKEN=TOKEN)
    await running.wait_until_it_answers()
    return running


async def test_a_peer_is_loaded_and_chats(peer: Running) -> None:
    streamed, whole, endpoint = Client(), Client(), ReplicaEndpoint(peer.address, token=TOKEN)
    engine = GrpcEngine(Pool())

    await engine.load(endpoint, PARROT, Place())
    async with upstream_at(peer.address, TOKEN) as upstream:
        await upstream.serve(chat("grüß dich"), streamed)
        await upstream.serve(chat("grüß dich", stream=False), whole)

    assert await engine.healthy(endpoint) is True
    assert streamed.text == "grüß dich"
    assert whole.json["choices"][0]["message"]["content"] == "grüß dich"
    assert whole.json["usage"]["completion_tokens"] == 2


async def test_a_peer_without_a_model_says_so(peer: Running) -> None:
    async with upstream_at(peer.address, TOKEN) as upstream:
        with pytest.raises(UpstreamFailed) as failed:
            await upstream.serve(chat("hi"), Client())

    assert failed.value.fault is Fault.NOT_LOADED


async def test_a_peer_is_not_loaded_with_a_wrong_token(peer: Running) -> None:
    with pytest.raises(BackendFailed, match="UNAUTHENTICATED"):
        await GrpcEngine(Pool()).load(ReplicaEndpoint(peer.address, token="no"), PARROT, Place())
