"""Processes taken for others: a model that is not the one that is meant, a port that another program has."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import psutil
import pytest

from remuda.host.ports import listen
from tests.integration.running.rig import HOST, TOKEN, Rig
from tests.peers.backend_client import BackendClient, CallFailed
from tests.peers.backend_proto import build, service
from tests.peers.shell_backend.install import install_shell_backend
from tests.support.bad_backends import Bad, tell, write_bad_backend
from tests.support.models import tiny_model
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("backend", ["shell", "llama-cpp"])
async def test_one_that_holds_another_model_says_so_instead_of_answering(rig: Rig, backend: str) -> None:
    install_shell_backend(rig.yard.backend("shell"))
    reply = await rig.installed(backend, model_id="one")
    async with BackendClient(reply["address"], TOKEN) as client:
        loaded = await client.load_model(
            Model="one", ModelFile=str(tiny_model()), ContextSize=256, Threads=1, MMap=True
        )
        assert loaded.success, loaded.message

        with pytest.raises(CallFailed) as refusal:
            await client.predict(Prompt="the house", Tokens=2, ModelIdentity="another")
        right = await client.predict(Prompt="the house", Tokens=2, ModelIdentity="one")

    assert refusal.value.code == "NOT_FOUND"
    assert "model identity mismatch" in refusal.value.details
    assert right.tokens > 0


@asynccontextmanager
async def impostor(address: str) -> AsyncIterator[None]:
    """Another program that answers as a healthy backend does."""
    server = grpc.aio.server()

    async def health(request: object, context: object) -> object:
        return build("Reply", message=b"OK")

    server.add_generic_rpc_handlers((service({"Health": health}),))
    server.add_insecure_port(address)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@asynccontextmanager
async def mute(address: str) -> AsyncIterator[None]:
    """Another program that takes connections and speaks no protocol of ours."""
    with listen(HOST, _port(address)):
        yield


@asynccontextmanager
async def squatter(address: str) -> AsyncIterator[None]:
    """Another program that has the port, though nothing listens there."""
    with socket.socket() as bound:
        bound.bind((HOST, _port(address)))
        yield


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("stranger", [impostor, mute, squatter])
async def test_a_backend_whose_port_another_program_takes_gets_another_port(
    rig: Rig, stranger: Callable[[str], AbstractAsyncContextManager[None]]
) -> None:
    folder = write_speechless(rig.yard.backend("slow"))
    replies: list[Any] = []

    async def install() -> None:
        replies.append(await rig.installed("slow", model_id="m"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(install)
        taken = await wait_until(lambda: address_but(rig, ""), what="a port")
        async with stranger(taken):
            if stranger is squatter:
                tell(folder)  # It tries its port and exits; the others are noticed while it does nothing.
            await wait_until(lambda: address_but(rig, taken), what="another port")
            tell(folder)
            await wait_until(lambda: replies, what="the end of the install")

    [reply] = replies
    assert reply["address"] not in ("", taken)
    assert _port(reply["address"]) in ports_of(rig.process("m"))


def write_speechless(folder: Path) -> Path:
    """A backend that opens its port when it is told to, and does not say why it could not."""
    run_file = write_bad_backend(folder, Bad.STARTS_SLOWLY)
    run_file.write_text(run_file.read_text().replace('"$@"', '"$@" 2>/dev/null'))
    return folder


def address_but(rig: Rig, known: str) -> str:
    """Where the only process is to listen; empty if there is none, or that is where it is known to."""
    addresses = [row.address for row in rig.room.report().replicas if row.address]
    return addresses[0] if addresses and addresses[0] != known else ""


def ports_of(process: psutil.Process) -> set[int]:
    connections = process.net_connections("tcp")
    return {held.laddr.port for held in connections if held.status == psutil.CONN_LISTEN}
