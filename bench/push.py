"""How fast a file is pushed to a worker by the contract, against `curl -T` of the same file in the same run.

    uv run --group dev python -m bench.push [--mb 400] [--rounds 3] [--folder DIR]

Both send to the file server of a worker, in a process of its own, over loopback; it hashes what arrives and
makes it durable. Ours asks first what is there, and knows the hash of the file, as a frontend does. They take
turns, after everything written before has reached the disk. The best round counts, and beside it the median
of the rounds' own ratios, from which the load of the machine cancels out. Ours has the hash compared at the
end, so `curl -T` is also measured with `openssl dgst -sha256` of the file before it. Ours has its interpreter
started already.
Aim: at least 0.8 of curl.
"""

import argparse
import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import anyio
from pydantic import SecretStr
from tests.support.debian import debian_program

from bench.contenders import Run, after, checksum, in_turns, rates
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.log import configure
from remuda.host.ports import listen
from remuda.staging.push import FileServerAddress, LocalFile, open_pusher
from remuda.wire.models import ModelsRunningReply
from remuda.worker.enrolment import OpeningTokens
from remuda.worker.files.service import FileService
from remuda.worker.http.app import TokenGuard, application
from remuda.worker.http.backend_proxy import open_door
from remuda.worker.http.server import serve
from remuda.worker.processes.logs import ProcessLogs

TOKEN = "the-token"
PUSH_S = 600.0
AIM = 0.8
CHECKED = "sha256, curl -T"
CHUNK = 1 << 20


@contextmanager
def worker(root: Path) -> Iterator[str]:
    """The address of a worker's HTTP server."""
    fresh = get_context("spawn")
    receiver, sender = fresh.Pipe(duplex=False)
    process = fresh.Process(target=serve_here, args=(sender, root))
    process.start()
    try:
        yield f"127.0.0.1:{receiver.recv()}"
    finally:
        process.kill()
        process.join()


def serve_here(sender: Connection, root: Path) -> None:
    configure("warning")
    anyio.run(serve_files, sender, root, backend_options={"use_uvloop": True})


async def serve_files(sender: Connection, root: Path) -> None:
    clock, socket = SystemClock(), listen("127.0.0.1", 0)
    files = FileService(root / "models", clock=clock, entropy=SystemEntropy())
    guard = TokenGuard(OpeningTokens(SecretStr(TOKEN)))
    async with open_door(lambda _: None) as door, anyio.create_task_group() as tasks:
        await tasks.start(files.run)
        logs = ProcessLogs(root / "logs", clock)
        await tasks.start(
            serve, application(lambda: "", guard, logs, door, nothing_runs, files.pages), socket
        )
        sender.send(socket.getsockname()[1])


async def nothing_runs() -> ModelsRunningReply:
    return ModelsRunningReply()


def curl(address: str, file: LocalFile, key: str) -> float:
    url = f"http://{address}/v1/files/{key}"
    words = [debian_program("curl", "curl"), "--silent", "--show-error", "--fail", "--output", os.devnull]
    began = time.perf_counter()
    subprocess.run(
        [*words, "-H", f"Authorization: Bearer {TOKEN}", "-H", "Expect:", "-T", str(file.path), url],
        check=True,
        timeout=PUSH_S,
    )
    return time.perf_counter() - began


def ours(address: str, file: LocalFile, key: str) -> float:
    return anyio.run(push, address, file, key, backend_options={"use_uvloop": True})


async def push(address: str, file: LocalFile, key: str) -> float:
    server = FileServerAddress("bench", address, SecretStr(TOKEN))
    async with open_pusher(SystemEntropy()) as pusher:
        began = time.perf_counter()
        with anyio.fail_after(PUSH_S):
            await pusher.push(file, server, key)
        return time.perf_counter() - began


def made(path: Path, megabytes: int) -> LocalFile:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(megabytes):
            chunk = os.urandom(CHUNK)
            digest.update(chunk)
            file.write(chunk)
    return LocalFile(path, megabytes * CHUNK, digest.hexdigest())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        root = Path(folder)
        (root / "models").mkdir()
        file = made(root / "file", chosen.mb)
        runs: dict[str, list[Run]] = {CHECKED: [], "curl -T": [], "ours": []}
        with worker(root) as address:
            for number in range(chosen.rounds):
                for name, contender in (("curl -T", curl), ("ours", ours)):
                    os.sync()
                    seconds = contender(address, file, f"models/{number}/{name[:4]}".replace(" ", ""))
                    runs[name].append(Run(seconds))
                    for sent in (root / "models").rglob("*"):
                        if sent.is_file():
                            sent.unlink()
                runs[CHECKED].append(after(checksum(file.path), runs["curl -T"][-1]))
        for name, rate in (reached := rates(runs, chosen.mb * CHUNK / 1e6)).items():
            print(f"{name:20} {rate:7.0f} MB/s")
        print(f"ours is {reached['ours'] / reached['curl -T']:.2f} of curl -T (aim: {AIM})")
        print(
            f"in turns: {in_turns(runs, 'ours', 'curl -T'):.2f} of curl -T; "
            f"of {CHECKED}, which says what was sent, too: {in_turns(runs, 'ours', CHECKED):.2f}"
        )


if __name__ == "__main__":
    main()
