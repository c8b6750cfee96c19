"""Built-in backends as the processes they are, called over gRPC."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from remuda.rpc import backend_pb2 as pb
from remuda.rpc.backend_pb2_grpc import BackendStub
from tests.support.processes import START_S, Process
from tests.support.waiting import wait_until_blocking

ECHO = "remuda.backends.echo"
CALL_S = 20.0
_BIG = 200 << 20  # Ours, so that the limit met is the backend's.
_OPTIONS = [("grpc.max_receive_message_length", _BIG), ("grpc.max_send_message_length", _BIG)]
_FOREIGN = ("REMUDA_", "LOCALAI_", "ECHO_")


class BackendProcess(Process):
    """A backend that was told to listen on a free port, and the calls it takes."""

    def __init__(self, folder: Path, *arguments: str, module: str = ECHO, **environ: str) -> None:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        words = [module, *(arguments or ("--addr", "127.0.0.1:0"))]
        super().__init__(words, folder, {**plain, **environ}, folder / "backend")

    @property
    def address(self) -> str:
        """Where it listens; waited for."""

        def announced() -> str | None:
            assert self.running, f"it ended:\n{self.log}"
            found = re.search(r"listening address=(\S+)", self.log)
            return found and found[1]

        return wait_until_blocking(announced, within=START_S, what="a backend that listens")

    @contextmanager
    def calls(self, token: str = "") -> Iterator[Any]:
        """Its stub; every call carries the token and a deadline."""
        with grpc.insecure_channel(self.address, options=_OPTIONS) as channel:
            yield _Patient(BackendStub(channel), [("authorization", f"Bearer {token}")] if token else [])


class _Patient:
    def __init__(self, stub: Any, metadata: list[tuple[str, str]]) -> None:
        self._stub = stub
        self._metadata = metadata

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        call = getattr(self._stub, name)
        return lambda request: call(request, timeout=CALL_S, metadata=self._metadata)


@contextmanager
def running(folder: Path, *arguments: str, module: str = ECHO, **environ: str) -> Iterator[BackendProcess]:
    """The process is gone when the block ends."""
    process = BackendProcess(folder, *arguments, module=module, **environ)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def loaded(folder: Path, *options: str, **environ: str) -> Iterator[tuple[BackendProcess, Any]]:
    """Echo with a model called `parrot` and these options, and its calls."""
    with running(folder, **environ) as process, process.calls() as calls:
        assert calls.LoadModel(pb.ModelOptions(Model="parrot", Options=options)).success
        yield process, calls


def status_of(call: Callable[[], object]) -> tuple[str, str]:
    """The name of the status with which the call fails, and its message."""
    try:
        answer = call()
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError(f"it did not fail: {answer!r}")
