"""The llama-cpp backend as a process, with a model in it."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Self

import psutil

from tests.integration.backends.programs import BackendProcess, running
from tests.peers.backend_client import BackendClient, Reply
from tests.support.models import tiny_model
from tests.support.waiting import wait_until_blocking

WATCH_END_S = 30.0
HEALTH_S = 0.3  # Other tests share the cores; a load that holds the interpreter takes seconds.
HEALTH_FACTOR = 4
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


class HealthWatch:
    """Asks for Health from a process of its own while the block runs."""

    def __init__(self, process: BackendProcess) -> None:
        module = "tests.integration.backends.health_watch"
        self._watcher = subprocess.Popen(
            [sys.executable, "-m", module, process.address, TOKEN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.asked = 0
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        assert self._watcher.stdout
        assert self._watcher.stdout.readline() == "watching\n"
        return self

    def __exit__(self, *_: object) -> None:
        said, _unused = self._watcher.communicate(timeout=WATCH_END_S)
        asked, longest = said.split()
        self.asked, self.longest_s = int(asked), float(longest)


def allowed_s(control: HealthWatch) -> float:
    """How long Health may take while a backend works: a moment, or several times what it takes a
    backend without work on a machine this busy."""
    return max(HEALTH_S, HEALTH_FACTOR * control.longest_s)


def text_of(replies: list[Reply]) -> str:
    return b"".join(reply.message for reply in replies).decode()


def engine_of(process: BackendProcess) -> psutil.Process:
    (engine,) = psutil.Process(process.pid).children(recursive=True)
    return engine


def gone(process: psutil.Process) -> bool:
    """It has ended, waited for; what is left of it may wait for its parent."""

    def ended() -> bool:
        with suppress(psutil.NoSuchProcess):
            return process.status() == psutil.STATUS_ZOMBIE
        return True

    return wait_until_blocking(ended, what=f"the end of process {process.pid}")
