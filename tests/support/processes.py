"""Remuda as its users run it: real processes, watched from outside. None of them outlives its test."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

import httpx
import psutil
from click.testing import CliRunner, Result

from remuda.cli.verbs import root
from remuda.host import tether
from remuda.host.folder import DataFolder
from tests.support.fork_server import FORK_SERVER, ForkedProcess
from tests.support.logs import log_left_as_it_was
from tests.support.plain_http import PLAIN
from tests.support.waiting import wait_until_blocking

Json = dict[str, Any]
TOKEN = "token-of-the-whole-fleet"
START_S = 30.0
STOP_S = 30.0
_COMMAND_S = 60.0
_OFTEN = ("--heartbeat-interval", "500ms")

# Without it a frontend looks for upgrades in public galleries, and no test leaves this machine.
SHIPPED_GALLERY = '[{"name":"remuda","url":"builtin:gallery"}]'


class Process:
    """One running command: its output, its signals, its family."""

    def __init__(
        self, arguments: Sequence[str], data_dir: Path, environ: Mapping[str, str], output: Path
    ) -> None:
        self.data_dir = data_dir
        self._out, self._err = output.with_suffix(".out"), output.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = start_module(arguments, environ, out, err)
        self.pid = self._process.pid

    @property
    def shown(self) -> str:
        """What people see: standard output."""
        return self._out.read_text(errors="replace")

    @property
    def log(self) -> str:
        return self._err.read_text(errors="replace")

    def events(self, name: str) -> list[Json]:
        """The log's events of that name, oldest first."""
        lines = [line for line in self.log.splitlines() if line.startswith("{")]
        return [event for line in lines if (event := json.loads(line)).get("event") == name]

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """As the kernel's out-of-memory killer would, and be sure that it is over."""
        self._process.kill()
        self._process.wait(STOP_S)

    def wait(self, within: float = STOP_S) -> int:
        """The exit code."""
        return self._process.wait(within)

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.wait()

    def child(self, name: str) -> psutil.Process:
        """The live child with that word, or program, in its command line; waited for."""
        return wait_until_blocking(lambda: self._child(name), within=START_S, what=f"a child {name}")

    def _child(self, name: str) -> psutil.Process | None:
        with suppress(psutil.Error):
            for process in psutil.Process(self.pid).children(recursive=True):
                with suppress(psutil.Error):
                    words = process.cmdline()
                    # Not while it is still being tied to its parent: it has not begun yet.
                    if any(Path(word).name == name for word in words) and tether.__file__ not in words:
                        return process
        return None


class Worker(Process):
    """`remuda worker` or `remuda join`."""

    def wait_for(self, phase: str) -> Json:
        """The latest change of phase, once it is to this one."""

        def arrived() -> Json | None:
            assert self.running, f"it ended:\n{self.log}"
            changes = self.events("worker_phase_changed")
            return changes[-1] if changes and changes[-1]["phase"] == phase else None

        return wait_until_blocking(arrived, within=START_S, what=f"a worker that is {phase}")


class Frontend(Process):
    """`remuda frontend` or `remuda up`, once it answers."""

    def __init__(
        self, arguments: Sequence[str], data_dir: Path, environ: Mapping[str, str], output: Path
    ) -> None:
        super().__init__(arguments, data_dir, environ, output)
        self._folder = DataFolder(data_dir)
        self.url = ""
        self.api_key = ""

    def wait_until_it_answers(self) -> None:
        """Also reads where it answers, and the key for commands on this machine."""

        def announced() -> Json | None:
            assert self.running, f"it ended:\n{self.log}"
            with suppress(OSError):
                endpoint: Json = json.loads(self._folder.endpoint.read_text())
                return endpoint if endpoint["pid"] == self.pid else None
            return None

        endpoint = wait_until_blocking(announced, within=START_S, what=f"{self.data_dir} to answer")
        self.url, self.api_key = endpoint["url"], endpoint["api_key"]

    def ask(self, method: str, path: str, body: object = None, key: str | None = None) -> httpx.Response:
        """Call the API as a command on this machine would, or with another key."""
        bearer = self.api_key if key is None else key
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        return httpx.request(
            method,
            f"{self.url}{path}",
            json=body,
            headers=headers,
            trust_env=False,
            timeout=15,
            verify=PLAIN,
        )

    def get(self, path: str) -> Any:
        return self.ask("GET", path).raise_for_status().json()

    def register(self, name: str, token: str = TOKEN) -> Json:
        """As a worker would; the token stands in both places where the contract looks for it."""
        body = {"name": name, "address": "127.0.0.1:50051", "token": token}
        reply: Json = self.ask("POST", "/api/node/register", body, key=token).raise_for_status().json()
        return reply

    def beat(self, node_id: str, token: str = TOKEN) -> None:
        self.ask("POST", f"/api/node/{node_id}/heartbeat", {}, key=token).raise_for_status()

    def nodes(self) -> dict[str, Json]:
        """Every node by name."""
        return {node["name"]: node for node in self.get("/api/nodes")}

    def statuses(self) -> dict[str, str]:
        return {name: node["status"] for name, node in self.nodes().items()}

    def wait_for(self, name: str, status: str = "healthy", *, within: float = START_S) -> Json:
        """The node of that name, once it has that status."""

        def arrived() -> Json | None:
            with suppress(httpx.TransportError):
                node = self.nodes().get(name)
                return node if node and node["status"] == status else None
            return None

        return wait_until_blocking(arrived, within=within, what=f"{name} to be {status}")

    def history(self, name: str) -> list[str]:
        """What happened to that node, oldest first."""
        return [entry["event"] for entry in reversed(self.get(f"/api/history?node={name}"))]

    def not_ready(self) -> str:
        """Why it says that it cannot work; empty when it can."""
        answer = self.ask("GET", "/readyz")
        return "" if answer.status_code == 200 else str(answer.json()["reason"])

    @property
    def bus_port(self) -> int:
        port: int = json.loads((self.data_dir / "nats/server.json").read_text())["port"]
        return port


P = TypeVar("P", bound=Process)


class Ranch:
    """A folder in which a test starts processes, each with a data folder of its own.

    All of them hold the same registration token, unless told otherwise.
    """

    def __init__(self, folder: Path) -> None:
        FORK_SERVER.prepare()
        self.folder = folder
        self._started: list[Process] = []
        home = folder / "home"
        home.mkdir(parents=True)
        # Nothing of this machine's own settings: no config file, no variables.
        foreign = ("REMUDA_", "LOCALAI_", "XDG_")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self._environ = {
            **plain,
            "HOME": str(home),
            "REMUDA_REGISTRATION_TOKEN": TOKEN,
            "REMUDA_STARTER": "0",
        }

    def up(self, data: str = "up", *arguments: str, **environ: str) -> Frontend:
        """`remuda up` that has said so; its own node is called like the folder."""
        frontend = self.begin_up(data, *arguments, **environ)
        frontend.wait_until_it_answers()
        wait_until_blocking(lambda: "is up." in frontend.shown, within=START_S, what="the banner")
        return frontend

    def begin_up(self, data: str = "up", *arguments: str, **environ: str) -> Frontend:
        """The same, not waited for."""
        words = ("--port", "0", "--name", data, *_OFTEN, *arguments)
        return self._start(Frontend, data, environ, "remuda", "up", *words)

    def frontend(
        self, data: str = "frontend", *arguments: str, program: str = "remuda", **environ: str
    ) -> Frontend:
        """`remuda frontend`, answering; `tests.support.hasty` is one that waits for others less long.

        Secrets, of which addresses with passwords are some, are better variables: given as arguments they
        make it start a second time, which costs as much as all the rest.
        """
        frontend = self.begin_frontend(data, *arguments, program=program, **environ)
        frontend.wait_until_it_answers()
        return frontend

    def begin_frontend(
        self, data: str = "frontend", *arguments: str, program: str = "remuda", **environ: str
    ) -> Frontend:
        """The same, not waited for."""
        return self._start(Frontend, data, environ, program, "frontend", "--port", "0", *arguments)

    def join(self, url: str, data: str, *arguments: str, **environ: str) -> Worker:
        """`remuda join`; its node is called like the folder."""
        words = ("--name", data, *_OFTEN, *arguments)
        return self._start(Worker, data, environ, "remuda", "join", url, *words)

    def worker(self, data: str, *arguments: str, **environ: str) -> Worker:
        return self._start(Worker, data, environ, "remuda", "worker", *arguments)

    def program(self, module: str, *arguments: str, **environ: str) -> Process:
        """Any Python module, such as a peer."""
        return self._start(Process, "program", environ, module, *arguments)

    def remuda(
        self, *arguments: str, data: str = "up", typed: str = "", **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself, given by the owner of that data folder."""
        words, variables = ["remuda", *arguments], self.environ_in(data, **environ)
        with TemporaryFile() as stdin, TemporaryFile() as out, TemporaryFile() as err:
            stdin.write(typed.encode())
            stdin.seek(0)
            code = start_module(words, variables, out, err, stdin).wait(_COMMAND_S)
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess(words, code, out.read().decode(), err.read().decode())

    def invoke(self, *arguments: str, data: str = "up", **environ: str) -> Result:
        """The same in this process, which has imported what costs most; not from a thread or a loop."""
        with log_left_as_it_was():
            return CliRunner().invoke(
                root, arguments, env=self.environ_in(data, **environ), prog_name="remuda"
            )

    def processes(self, data: str = "") -> list[psutil.Process]:
        """Every live process that works in that folder, or in any here, whoever started it."""
        place = self.folder / data
        started = {
            known.pid for known in self._started if known.running and known.data_dir.is_relative_to(place)
        }
        return [
            process
            for process in psutil.process_iter()
            if process.pid in started or _works_in(process, place)
        ]

    def stop_workers(self) -> None:
        """In order, all that were started on their own and still run."""
        workers = [one for one in self._started if isinstance(one, Worker) and one.running]
        for one in workers:
            one.send(signal.SIGTERM)
        for one in workers:
            one.wait()

    def clear(self) -> None:
        """End everything. Repeated, for what is being killed may be starting a child."""
        wait_until_blocking(self._kill_all, within=STOP_S, what="an empty ranch")
        for started in self._started:
            started.wait()

    def _kill_all(self) -> bool:
        """Whether there was nothing left to kill."""
        left = self.processes()
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        return not left

    def _start(self, kind: type[P], data: str, environ: Mapping[str, str], module: str, *arguments: str) -> P:
        output = self.folder / f"{len(self._started)}-{data}"
        words = [module, *arguments]
        process = kind(words, self.folder / data, self.environ_in(data, **environ), output)
        self._started.append(process)
        return process

    def environ_in(self, data: str, **environ: str) -> Mapping[str, str]:
        """Of a command given by the owner of that data folder."""
        own = {"REMUDA_DATA_DIR": str(self.folder / data), "REMUDA_BACKEND_GALLERIES": SHIPPED_GALLERY}
        return {**self._environ, **own, **environ}


def start_module(
    words: Sequence[str],
    environ: Mapping[str, str],
    out: IO[bytes],
    err: IO[bytes],
    stdin: IO[bytes] | None = None,
) -> "ForkedProcess | subprocess.Popen[bytes]":
    """Run a module. Tied to this process, so that not even a killed test run leaves anything behind."""
    forked = FORK_SERVER.start(words, environ, stdin=stdin, stdout=out, stderr=err)
    if forked is not None:
        return forked
    tied = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid())] if sys.platform == "linux" else []
    return subprocess.Popen(
        [*tied, sys.executable, "-m", *words],
        stdin=stdin or subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=environ,
        start_new_session=True,
    )


@contextmanager
def ranch(folder: Path) -> Iterator[Ranch]:
    """Whatever was started in it is gone when the block ends, whatever ends it."""
    started = Ranch(folder)
    try:
        yield started
    finally:
        started.clear()


def _works_in(process: psutil.Process, place: Path) -> bool:
    try:
        words = [*process.cmdline(), *process.environ().values()]
    except psutil.Error:  # Ended meanwhile, or somebody else's.
        return False
    return any(word == str(place) or word.startswith(f"{place}/") for word in words)
