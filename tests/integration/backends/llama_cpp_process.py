"""The llama-cpp backend as a process, with a model in it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil

from tests.integration.backends.programs import BackendProcess, running
from tests.peers.backend_client import BackendClient, Reply
from tests.support.models import tiny_model
from tests.support.waiting import wait_until_blocking

MODULE = "remuda.backends.llama_cpp"
TOKEN = "a-token-of-no-value"
TINY = {"Model": "tiny", "Threads": 1, "MMap": True, "ContextSize": 512}


def client_of(process: BackendProcess, token: str = TOKEN) -> BackendClient:
    return BackendClient(process.address, token)


@contextmanager
def started(folder: Path) -> Iterator[BackendProcess]:
    """Without a model; gone when the block ends, with its engine."""
    with running(folder, module=MODULE, LOCALAI_GRPC_AUTH_TOKEN=TOKEN) as process:
        yield process


@asynccontextmanager
async def holding(folder: Path, **options: object) -> AsyncIterator[tuple[BackendProcess, BackendClient]]:
    """With the tiny model, or the one in `options`."""
    with started(folder) as process:
        async with client_of(process) as client:
            await loaded(client, **options)
            yield process, client


async def loaded(client: BackendClient, **options: object) -> None:
    outcome = await client.load_model(**{"ModelFile": str(tiny_model()), **TINY, **options})
    assert outcome.success, outcome.message


async def said(client: BackendClient, **options: object) -> list[Reply]:
    return [reply async for reply in client.predict_stream(**options)]


def text_of(replies: list[Reply]) -> str:
    return b"".join(reply.message for reply in replies).decode()


def engine_of(process: BackendProcess) -> psutil.Process:
    (engine,) = psutil.Process(process.pid).children(recursive=True)
    return engine


def gone(process: psutil.Process) -> None:
    """It has ended; what is left of it may wait for its parent."""

    def ended() -> bool:
        with suppress(psutil.NoSuchProcess):
            return process.status() == psutil.STATUS_ZOMBIE
        return True

    wait_until_blocking(ended, what=f"the end of process {process.pid}")
