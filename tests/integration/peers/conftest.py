"""Backends started as a worker starts them."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from remuda.host.ports import free_port
from tests.peers.backend_client import BackendClient, CallFailed
from tests.support.waiting import wait_until

HOST = "127.0.0.1"
END_S = 10.0


@dataclass(frozen=True, slots=True)
class Running:
    folder: Path
    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def errors(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def ended(self) -> int:
        """Its exit code, waited for; minus the signal's number when a signal ended it."""
        return self.process.wait(END_S)

    async def health(self) -> str:
        """What it answers to one call, or the status of that call."""
        async with BackendClient(self.address, call_s=2) as client:
            try:
                return await client.health()
            except CallFailed as failed:
                return failed.code

    async def wait_until_it_answers(self) -> None:
        async def answers() -> bool:
            assert self.process.poll() is None, self.errors
            return await self.health() != "UNAVAILABLE"

        await wait_until(answers, within=30)


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a run file with these variables; its whole group is gone after the test."""
    with ExitStack() as stack:

        def begin(run_file: Path, **environ: str) -> Running:
            return stack.enter_context(_running(run_file, environ))

        yield begin


@contextmanager
def _running(run_file: Path, environ: dict[str, str]) -> Iterator[Running]:
    folder, port = run_file.parent, free_port(HOST)
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [f"./{run_file.name}", "--addr", f"0.0.0.0:{port}"],
            cwd=folder,
            env={"PATH": os.environ["PATH"], **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            process_group=0,
        )
    try:
        yield Running(folder, port, process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_S)
