"""A worker that knows the contract alone and runs what it is asked to run: a program, for it is killed.

It has one backend, installed by hand, and says how much VRAM it has without having any. It serves the logs of
its backends, and passes them on to its own standard error.
"""

import argparse
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
from anyio.abc import ByteReceiveStream, Process, TaskGroup, TaskStatus
from anyio.streams.text import TextReceiveStream
from nats.aio.client import Client
from nats.aio.msg import Msg

from remuda.host.ports import free_port
from tests.peers.localai_file_server import FileServer
from tests.peers.localai_worker import JSON, LocalAiWorker, WorkerOptions

BACKEND = "shell"
_HOST = "127.0.0.1"
_START_S = 20.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Running:
    process: Process
    address: str


class ServingWorker(LocalAiWorker):
    """Processes are known by `model#replica`, and started as the contract has it: `run.sh --addr`."""

    def __init__(self, options: WorkerOptions, run_file: str, vram_bytes: int, files_at: str = "") -> None:
        """`files_at`: the address of a file server, in place of one of its own."""
        super().__init__(options)
        self._files_at = files_at
        self._run_file = run_file
        self._vram_bytes = vram_bytes
        self._running: dict[str, Running] = {}
        self._files = FileServer(options.token)
        self._readers: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with self._files.serving(_HOST), anyio.create_task_group() as self._readers:
            await super().run(task_status=task_status)
            self._readers.cancel_scope.cancel()

    def _introduction(self) -> JSON:
        vram = self._vram_bytes
        told = {"total_vram": 2 * vram, "available_vram": 2 * vram, "vram_budget": f"{vram}"}
        return (
            super()._introduction()
            | {"http_address": self._files_at or self._files.address}
            | (told if vram else {})
        )

    async def _on(self, bus: Client, verb: str, handle: Callable[[Msg, JSON], Awaitable[None]]) -> None:
        own: dict[str, Callable[[JSON], JSON]] = {
            "backend.list": lambda _: {"backends": [{"name": BACKEND, "is_system": True, "is_meta": False}]},
            "models.running": self._listed,
            "model.stop": self._stopped,
        }
        answer = own.get(verb)

        async def heard(message: Msg, body: JSON) -> None:
            print(verb, body.get("model_id") or body.get("model_name") or "", flush=True)
            await (handle(message, body) if answer is None else self._reply(answer, message, body))

        await super()._on(bus, verb, heard)

    async def _install(self, bus: Client, done: JSON, message: Msg, body: JSON) -> None:
        key = f"{body['model_id']}#{body.get('replica_index', 0)}"
        before = self._running.get(key)
        if before is None or before.process.returncode is not None:
            self._running[key] = await self._started(key)
        await self._reply(lambda _: done | {"address": self._running[key].address}, message, body)

    async def _started(self, key: str) -> Running:
        port = free_port(_HOST)
        command = [self._run_file, "--addr", f"{_HOST}:{port}"]
        token = {"LOCALAI_GRPC_AUTH_TOKEN": self._options.token}
        process = await anyio.open_process(command, env={**os.environ, **token}, stdin=None)
        assert self._readers is not None, "it runs"
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert pipe is not None, "both are read"
            self._readers.start_soon(self._read, key, name, pipe)
        with anyio.fail_after(_START_S):
            while True:
                try:
                    await (await anyio.connect_tcp(_HOST, port)).aclose()
                except OSError:
                    await anyio.sleep(_POLL_S)
                else:
                    return Running(process, f"{_HOST}:{port}")

    async def _read(self, key: str, name: str, pipe: ByteReceiveStream) -> None:
        rest = ""
        async for text in TextReceiveStream(pipe, errors="replace"):
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                self._files.say(key, name, line)
                print(line, file=sys.stderr, flush=True)

    def _listed(self, request: JSON) -> JSON:
        live = {key: one for key, one in self._running.items() if one.process.returncode is None}
        rows = [(*key.rsplit("#", 1), one.address) for key, one in live.items()]
        models = [{"model_id": model, "replica_index": int(i), "address": at} for model, i, at in rows]
        return {"models": models}

    def _stopped(self, request: JSON) -> JSON:
        key = str(request["process_key"])
        found = self._running.pop(key, None)
        if found is not None:
            found.process.kill()
        return {
            "matched": found is not None,
            "freed": found is not None,
            "terminated": True,
            "process_key": key,
        }


def _asked() -> tuple[WorkerOptions, str, int, str]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--register-to", required=True)
    parser.add_argument("--nats-url", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--run-file", required=True)
    parser.add_argument("--vram-bytes", type=int, default=0)
    parser.add_argument("--files-at", default="")
    asked = parser.parse_args()
    options = WorkerOptions(
        asked.register_to,
        asked.nats_url,
        asked.name,
        token=os.environ["LOCALAI_REGISTRATION_TOKEN"],
        require_auth=True,
        heartbeat_s=0.5,
    )
    return options, asked.run_file, asked.vram_bytes, asked.files_at


async def _main() -> None:
    async with anyio.create_task_group() as tasks:
        await tasks.start(ServingWorker(*_asked()).run)
        print("ready", flush=True)


if __name__ == "__main__":
    anyio.run(_main)
