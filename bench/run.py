"""What running backends costs above the backends themselves.

    uv run --group dev python -m bench.run [--rounds 15] [--processes 50] [--no-engine] [--model FILE]

One real worker, a process of its own, is told what to do over a real nats-server. Prints
- the time from `backend.install` to its reply for `echo`, above what echo takes when it is started directly
  and asked for its health until it answers (in turns: a busy neighbour slows both), and where it goes;
- the worker's memory with no process and with many of a server as light as Python allows, and how long it
  takes to start and to stop them all;
- tokens/s of llama-cpp over gRPC against xllamacpp called directly (`bench.engine`).
Aims: below 150 ms; at least 0.95.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import anyio
import grpc
import psutil
from tests.peers.localai_frontend import LocalAiFrontend
from tests.support.nats_servers import connected, plain_server

from remuda.bus.client import Bus
from remuda.core.ids import NodeId
from remuda.core.log import configure
from remuda.host.children import LaunchSpec, running
from remuda.host.ports import free_port
from remuda.host.process_family import tied
from remuda.rpc import backend_pb2 as pb
from remuda.rpc.backend_pb2_grpc import BackendStub
from remuda.wire import subjects
from remuda.wire.backends import BackendInstall
from remuda.wire.codec import Message, encode
from remuda.wire.models import ModelStop

AIM_S = 0.150
TOKEN = "bench-token-of-no-value"
HOST = "127.0.0.1"
NODE = "bench"
LIMIT = timedelta(seconds=120)
START_S = 60.0
POLL_S = 0.005
LIGHT = "light"
# No imports beyond sockets, one thread, one answer: whatever is asked for.
LIGHT_SERVER = """\
import _socket, sys
door = _socket.socket()
door.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
door.bind(("127.0.0.1", int(sys.argv[1])))
door.listen(16)
while True:
    caller = _socket.socket(fileno=door._accept()[0])
    caller.recv(8192)
    caller.send(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    caller.close()
"""


@dataclass(frozen=True, slots=True)
class Job:
    rounds: int
    processes: int
    engine: tuple[str, ...] | None  # Its arguments; None: left out.


@dataclass(frozen=True, slots=True)
class Answered:
    seconds: float
    instance: str  # Of the process, where there is one.


@dataclass(frozen=True, slots=True)
class BenchWorker:
    """A worker at work, and the frontend's end of the bus."""

    process: psutil.Process
    data: Path
    bus: Bus
    node: NodeId

    async def ask(self, subject: Callable[[NodeId], str], request: Message | None = None) -> Answered:
        payload = encode(request) if request else b"{}"
        began = time.perf_counter()
        reply = json.loads(await self.bus.request(subject(self.node), payload, LIMIT))
        seconds = time.perf_counter() - began
        assert not reply.get("error"), reply["error"]
        return Answered(seconds, reply.get("instance", ""))

    async def install(self, backend: str, model: str, protocol: str = "") -> Answered:
        request = BackendInstall(backend=backend, model_id=model, protocol=protocol)
        return await self.ask(subjects.backend_install, request)

    async def stop(self, model: str, instance: str) -> None:
        """Without asking it to free its memory."""
        key = f"{model}#0"
        request = ModelStop(
            model_name=model, process_key=key, expected_address="", instance=instance, force=True
        )
        await self.ask(subjects.model_stop, request)


async def run(job: Job) -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    async with worker_at_work() as worker:
        await install_to_ready(worker, job.rounds)
        await many_processes(worker, job.processes)
    if job.engine is not None:
        print("tokens/s", flush=True)
        command = [sys.executable, "-m", "bench.engine", *job.engine]
        if (await anyio.run_process(command, stdout=None, stderr=None, check=False)).returncode:
            print("  not measured: bench.engine failed")


@asynccontextmanager
async def worker_at_work() -> AsyncIterator[BenchWorker]:
    """Registered, connected to the bus and ready."""
    with tempfile.TemporaryDirectory(prefix="remuda-bench-") as name:
        folder = Path(name)
        async with plain_server(folder) as nats, LocalAiFrontend(token=TOKEN) as frontend:
            frontend.extra_reply = {"nats_url": nats.url}
            http_port = free_port(HOST)
            env = {
                **os.environ,
                "REMUDA_CONFIG": "",
                "REMUDA_LOG_LEVEL": "warning",
                "REMUDA_REGISTRATION_TOKEN": TOKEN,
                "REMUDA_HTTP_ADDR": f"{HOST}:{http_port}",
            }
            words = ("worker", "--register-to", frontend.url, "--name", NODE, "--data-dir", name)
            argv = (sys.executable, "-m", "remuda", *words)
            spec = LaunchSpec("worker", argv, env, output=folder / "log", grace=LIMIT)
            async with running(spec) as child, connected(nats.url) as bus:
                worker = psutil.Process(child.pid)
                with anyio.fail_after(START_S):
                    while not await _is_ready(http_port):  # noqa: ASYNC110 - another process
                        await anyio.sleep(0.05)
                yield BenchWorker(worker, folder, bus, NodeId(frontend.node(NODE).id))


async def _is_ready(port: int) -> bool:
    try:
        async with await anyio.connect_tcp(HOST, port) as stream:
            await stream.send(b"GET /readyz HTTP/1.0\r\n\r\n")
            return b" 200 " in await stream.receive(64)
    except (OSError, anyio.EndOfStream):
        return False


# From the command to a process that answers.


async def install_to_ready(worker: BenchWorker, rounds: int) -> None:
    first = await worker.install("echo", "first")
    folder = worker.data / "worker" / "backends" / "echo"
    own, ours = list[float](), list[float]()
    for number in range(rounds):
        own.append(await anyio.to_thread.run_sync(_direct_start, folder))
        installed = await worker.install("echo", f"model-{number}")
        ours.append(installed.seconds)
        await worker.stop(f"model-{number}", installed.instance)
    above = [total - alone for total, alone in zip(ours, own, strict=True)]
    print(f"backend.install to ready, echo   ({rounds} rounds; median, worst)")
    print(f"  started directly               {_spread(own)}")
    print(f"  by backend.install             {_spread(ours)}")
    print(f"  above its own start            {_spread(above)}   (aim < {AIM_S * 1000:.0f} ms)")
    await _where_it_goes(worker, rounds)
    print(f"  the very first, with its files {_spread([first.seconds])}", flush=True)
    await worker.stop("first", first.instance)


async def _where_it_goes(worker: BenchWorker, rounds: int) -> None:
    """Parts that can be had alone. The rest are pauses between two health calls, and chance."""
    asked = [(await worker.ask(subjects.models_running)).seconds for _ in range(rounds)]
    again = [(await worker.install("echo", "first")).seconds for _ in range(rounds)]
    listed = [(await worker.ask(subjects.backend_list)).seconds for _ in range(rounds)]
    through_tether = [_seconds_of(tied(["/bin/true"])) for _ in range(rounds)]
    plain = statistics.median(_seconds_of(["/bin/true"]) for _ in range(rounds))
    print(f"    a question over the bus      {_spread(asked)}")
    print(f"    install of what runs already {_spread(again)}")
    print(f"    a list of what is installed  {_spread(listed)}")
    print(f"    tying it to the worker       {_spread([seconds - plain for seconds in through_tether])}")


def _seconds_of(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - began


def _direct_start(folder: Path) -> float:
    """Seconds from starting echo to its first good answer."""
    port = free_port(HOST)
    began = time.perf_counter()
    with subprocess.Popen(
        ["./run.sh", "--addr", f"{HOST}:{port}"], cwd=folder, stderr=subprocess.DEVNULL
    ) as process:
        try:
            while not _healthy(port):
                if process.poll() is not None or time.perf_counter() - began > START_S:
                    raise SystemExit("echo does not start")
                time.sleep(POLL_S)
            return time.perf_counter() - began
        finally:
            process.kill()


def _healthy(port: int) -> bool:
    """Looked for by connecting first: gRPC calls in vain would slow the start that is measured."""
    with socket.socket() as looking:
        if looking.connect_ex((HOST, port)):
            return False
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
    with grpc.insecure_channel(f"{HOST}:{port}", options=options) as channel:
        try:
            return bool(BackendStub(channel).Health(pb.HealthMessage(), timeout=1).message == b"OK")
        except grpc.RpcError:
            return False


# Many at once.


async def many_processes(worker: BenchWorker, count: int) -> None:
    await _register_light(worker)
    none = _memory(worker.process)
    instances: dict[str, str] = {}

    async def start(model: str) -> None:
        instances[model] = (await worker.install(LIGHT, model, protocol="http")).instance

    async def stop(model: str) -> None:
        await worker.stop(model, instances[model])

    models = [f"light-{number}" for number in range(count)]
    started_s = await _all_at_once(start, models)
    many, below = _memory(worker.process), len(worker.process.children(recursive=True))
    stopped_s = await _all_at_once(stop, models)
    print(f"{count} processes of a light HTTP server ({below} below the worker, with its reaper)")
    print(f"  started in {started_s:.2f} s, stopped in {stopped_s:.2f} s, all at once")
    print(f"  the worker's memory            none: {none}   {count}: {many}", flush=True)


async def _register_light(worker: BenchWorker) -> None:
    server, manifest = worker.data / "light.py", worker.data / f"{LIGHT}.yaml"
    server.write_text(LIGHT_SERVER)
    command = [sys.executable, "-I", "-S", str(server), "{port}"]
    manifest.write_text(f"protocol: http\ncommand: {json.dumps(command)}\n")
    words = ("backends", "register", str(manifest), "--data-dir", str(worker.data))
    await anyio.run_process([sys.executable, "-m", "remuda", *words])


async def _all_at_once(call: Callable[[str], Coroutine[None, None, None]], models: Sequence[str]) -> float:
    """Seconds until all are through."""
    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for model in models:
            tasks.start_soon(call, model)
    return time.perf_counter() - began


def _memory(process: psutil.Process) -> str:
    """PSS divides what is shared among those who share it."""
    held = process.memory_full_info()
    pss = getattr(held, "pss", 0)
    return f"RSS {held.rss / 1e6:.1f} MB" + (f", PSS {pss / 1e6:.1f} MB" if pss else "")


def _spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1000:6.0f} ms, {max(seconds) * 1000:4.0f} ms"


def _job() -> Job:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--processes", type=int, default=50)
    options.add_argument("--no-engine", action="store_true", help="leave out tokens/s")
    options.add_argument("--model", help="a GGUF file for tokens/s; default: a small one is fetched")
    given = options.parse_args()
    engine = ("--tokens", "64", "--rounds", "3", *(("--model", given.model) if given.model else ()))
    return Job(given.rounds, given.processes, None if given.no_engine else engine)


if __name__ == "__main__":
    configure("warning")
    anyio.run(run, _job())
