"""What a fleet depends on, as programs that are killed, frozen and started again with the same data."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from remuda.bus.server import find_binary
from remuda.host import tether
from remuda.host.ports import free_port
from tests.support.debian import debian_program
from tests.support.waiting import wait_until_blocking

HOST = "127.0.0.1"
_START_S = 30.0
_STOP_S = 10.0


class Program:
    """One process. Tied to this one, so that not even a killed test run leaves it behind."""

    def __init__(self, words: Sequence[str], log: Path, probe: str, env: Mapping[str, str]) -> None:
        self._words, self._log, self._probe, self._env = words, log, probe, env
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        tied = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid())]
        with self._log.open("ab") as log:
            self._popen = subprocess.Popen(
                [*tied, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], **self._env},
                start_new_session=True,
            )
        wait_until_blocking(self._answers, within=_START_S, what=self._words[0])

    def kill(self) -> None:
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait(_STOP_S)

    def freeze(self) -> None:
        assert self._popen is not None
        self._popen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._popen is not None
        self._popen.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(self._probe, timeout=5):
            return True
        return False


@contextmanager
def nats_program(folder: Path) -> Iterator[tuple[Program, int]]:
    """A server that lets everybody do everything, and its port."""
    port, monitor = free_port(HOST), free_port(HOST)
    words = [str(find_binary()), "-a", HOST, "-p", str(port), "-m", str(monitor)]
    yield from _lent(Program(words, folder / "nats.log", f"http://{HOST}:{monitor}/healthz", {}), port)


@contextmanager
def registry_program(folder: Path) -> Iterator[tuple[Program, int]]:
    """Debian's docker-registry, and its port."""
    port, config = free_port(HOST), folder / "registry.json"
    settings = {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": f"{HOST}:{port}"},
    }
    config.write_text(json.dumps(settings))  # JSON is YAML, too.
    words = [debian_program("docker-registry", "docker-registry"), "serve", str(config)]
    env = {"OTEL_TRACES_EXPORTER": "none"}
    yield from _lent(Program(words, folder / "registry.log", f"http://{HOST}:{port}/v2/", env), port)


def _lent(program: Program, port: int) -> Iterator[tuple[Program, int]]:
    try:
        program.start()
        yield program, port
    finally:
        program.kill()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        return None


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """The folder's files, for as long as the block lasts, below this address."""
    with ThreadingHTTPServer((HOST, 0), partial(_Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{HOST}:{server.server_address[1]}"
        finally:
            server.shutdown()
