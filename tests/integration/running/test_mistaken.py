"""Processes taken for others: a model that is not the one that is meant, a port that another program has."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import grpc
import pytest

from tests.integration.running.rig import TOKEN, Rig, Yard
from tests.peers.backend_client import BackendClient, CallFailed
from tests.peers.backend_proto import build, service
from tests.peers.shell_backend.install import install_shell_backend
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


def write_absent_backend(yard: Yard) -> Path:
    """It tells where it should listen, and does not."""
    folder = yard.backend("absent")
    folder.mkdir(parents=True)
    run_file = folder / "run.sh"
    run_file.write_text('#!/bin/sh\necho "$2" > address.part\nmv address.part address\nexec sleep 600\n')
    run_file.chmod(0o755)
    return folder / "address"


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


async def test_a_port_that_another_program_answers_on_is_not_taken_for_the_backend(rig: Rig) -> None:
    told = write_absent_backend(rig.yard)
    reasons: list[str] = []

    async def install() -> None:
        reasons.append((await rig.install("absent", model_id="m"))["error"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(install)
        await wait_until(told.exists)
        address = told.read_text().strip()
        async with impostor(address):
            await wait_until(lambda: reasons)

    port = address.rpartition(":")[2]
    assert reasons == [
        f"absent could not be started for m: it does not listen on port {port}, where another program answers"
    ]
    assert rig.yard.alive() == []
