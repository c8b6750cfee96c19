"""What is measured side by side: each gateway before the same upstream, on a core of its own."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.support.debian import debian_program

from bench.gateway_load import HOST, Place
from bench.mock_upstreams import MODEL
from remuda.host.ports import free_port

START_LIMIT_S = 180.0  # LiteLLM imports for a while.
STOP_LIMIT_S = 5.0
SHOWN_BYTES = 4096
_CORES = sorted(os.sched_getaffinity(0))
GATEWAY_CORE, OTHER_CORE = _CORES[0], _CORES[-1]
_NGINX = """\
daemon off; worker_processes 1; pid {folder}/pid; error_log stderr;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_buffer_size 1m; proxy_buffering off; keepalive_requests 1000000;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream replica {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://replica; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Running:
    place: Place
    process: psutil.Process | None = None  # None: no gateway in between.
    bus: psutil.Process | None = None  # A message server below it, which no request touches.

    def _counted(self) -> list[psutil.Process]:
        tree = [] if self.process is None else [self.process, *self.process.children(recursive=True)]
        return [process for process in tree if process != self.bus]

    def cpu_s(self) -> float:
        """Of all its processes but the bus, so far."""
        return sum(_cpu_s(process) for process in self._counted())

    def bus_cpu_s(self) -> float:
        return 0.0 if self.bus is None else _cpu_s(self.bus)

    def memory_bytes(self) -> int:
        """Without the bus, and with shared pages divided among those who share them."""
        return sum(process.memory_full_info().pss for process in self._counted())

    def resident_bytes(self) -> int:
        """The same with shared pages in full."""
        return sum(process.memory_info().rss for process in self._counted())


def _cpu_s(process: psutil.Process) -> float:
    """By its own clock, numbered as by clock_getcpuclockid(3), for /proc counts hundredths of a second."""
    return time.clock_gettime(~process.pid << 3 | 2)


Target = Callable[[int], AbstractContextManager[Running]]  # From the upstream's port.


@contextmanager
def direct(upstream_port: int) -> Iterator[Running]:
    yield Running(Place(upstream_port))


@contextmanager
def nginx(upstream_port: int) -> Iterator[Running]:
    program, port = debian_program("nginx", "nginx-light"), free_port(HOST)
    with tempfile.TemporaryDirectory(prefix="remuda-bench-") as folder:
        Path(folder).chmod(0o755)  # Its worker is another user.
        settings = Path(folder) / "nginx.conf"
        settings.write_text(_NGINX.format(folder=folder, port=port, upstream=upstream_port))
        with started([program, "-p", folder, "-c", str(settings)], port, GATEWAY_CORE) as process:
            yield Running(Place(port), process)


def litellm(program: str) -> Target:
    @contextmanager
    def target(upstream_port: int) -> Iterator[Running]:
        port, api, key = free_port(HOST), f"http://{HOST}:{upstream_port}/v1", f"sk-{secrets.token_hex(32)}"
        model = {"model": f"openai/{MODEL}", "api_base": api, "api_key": "none"}
        chosen = {
            "model_list": [{"model_name": MODEL, "litellm_params": model}],
            "general_settings": {"master_key": key},  # It does not start without one.
        }
        with tempfile.TemporaryDirectory(prefix="remuda-bench-") as folder:
            settings = Path(folder) / "litellm.yaml"
            settings.write_text(json.dumps(chosen))
            command = [program, "--config", str(settings), "--host", HOST, "--port", str(port)]
            with started([*command, "--telemetry", "False"], port, GATEWAY_CORE) as process:
                yield Running(Place(port, key), process)

    return target


def vllm_router(program: str) -> Target:
    @contextmanager
    def target(upstream_port: int) -> Iterator[Running]:
        port, metrics_port = free_port(HOST), free_port(HOST)
        command = [program, "--worker-urls", f"http://{HOST}:{upstream_port}", "--host", HOST]
        ports = ["--port", str(port), "--prometheus-port", str(metrics_port)]
        room = ["--max-concurrent-requests", "8192"]  # As nginx has: idle streams are requests, too.
        with started([*command, *ports, *room], port, GATEWAY_CORE) as process:
            yield Running(Place(port), process)

    return target


@contextmanager
def upstream(kind: str, *words: str) -> Iterator[int]:
    """The port of a mock replica: `http` or `grpc`. `words`: what else it is told."""
    port = free_port(HOST)
    command = [sys.executable, "-m", f"bench.mock_upstreams.{kind}_server", str(port), *words]
    with started(command, port, OTHER_CORE):
        yield port


@contextmanager
def started(command: list[str], port: int, core: int) -> Iterator[psutil.Process]:
    """A process on that core, once it listens. What it says is shown only if it never does."""
    with tempfile.TemporaryFile() as said, ExitStack() as stack:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})  # Inherited by all that it starts.
        process = subprocess.Popen(command, stdout=said, stderr=said)
        os.sched_setaffinity(0, before)
        stack.callback(_end, process)
        deadline_s = time.monotonic() + START_LIMIT_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                said.seek(0)
                raise SystemExit(f"{command[0]} does not start:\n{said.read()[-SHOWN_BYTES:].decode()}")
            time.sleep(0.05)
        yield psutil.Process(process.pid)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Some wait for streams that never end."""
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def pin(process: psutil.Process, core: int) -> None:
    """All its threads, and those that they start."""
    for thread in process.threads():
        os.sched_setaffinity(thread.id, {core})


def _listens(port: int) -> bool:
    with socket.socket() as looking:
        return looking.connect_ex((HOST, port)) == 0
