"""A worker's file server on a port of its own, with its folders."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from pydantic import SecretStr

from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.worker.enrolment import OpeningTokens
from remuda.worker.files.service import FileService
from remuda.worker.http.app import TokenGuard, application
from remuda.worker.http.backend_proxy import open_door
from remuda.worker.processes.logs import ProcessLogs
from tests.peers.localai_file_client import LocalAiFileClient
from tests.support.worker_http import TOKEN, listening, nothing_runs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileServer:
    """`root` holds models, data and staging, and nothing else of the worker's."""

    root: Path
    client: LocalAiFileClient

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def staging(self) -> Path:
        return self.root / "staging"

    def reset_client(self) -> None:
        self.client.token = TOKEN
        self.client.log.clear()

    @property
    def port(self) -> int:
        return int(self.client.address.rpartition(":")[2])

    async def do(self, call: Callable[..., T], *args: object, **named: object) -> T:
        """A call of the client, which blocks."""
        return await run_sync(partial(call, *args, **named))

    def left_over(self) -> list[str]:
        """Hidden files: what has not arrived whole."""
        return [str(path.relative_to(self.root)) for path in self.root.rglob(".*") if path.is_file()]


@asynccontextmanager
async def file_server(folder: Path) -> AsyncIterator[FileServer]:
    root = folder / "worker"
    (root / "models").mkdir(parents=True, exist_ok=True)
    (root / "data").mkdir(exist_ok=True)
    guard = TokenGuard(OpeningTokens(SecretStr(TOKEN)))
    service = FileService(root / "models", clock=SystemClock(), entropy=SystemEntropy())
    logs = ProcessLogs(folder / "logs", SystemClock())
    async with open_door(lambda _: None) as door, anyio.create_task_group() as tasks:
        await tasks.start(service.run)
        app = application(lambda: "", guard, logs, door, nothing_runs, service.pages)
        async with listening(app) as url:
            yield FileServer(root, LocalAiFileClient(url.removeprefix("http://"), TOKEN))
        tasks.cancel_scope.cancel()
