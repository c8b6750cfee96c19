"""A machine whose processes do as they are told, for tests of whoever supervises them. It also keeps watch:
two live processes under one key, or on one port, fail the test at the moment they meet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.lowlevel

from remuda.core.errors import ChildFailed
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.model import HealthResult, ProcessCommand, Recipe
from remuda.worker.processes.ports import PortListener

CALL_S = 0.005  # What a call to a backend takes, on whatever clock.
SIGTERM = -15
SIGKILL = -9


@dataclass(frozen=True, slots=True)
class Script:
    """What a process does, in seconds after its start. None: never."""

    ready_s: float | None = 0.5
    exits_s: float | None = None
    code: int = 1
    closes_port_s: float | None = None
    silent: tuple[float, float] = (0.0, 0.0)  # Does not answer in between.
    refused_looks: frozenset[int] = frozenset()  # Of those at it since it became ready, that one included.
    stderr: tuple[str, ...] = ()
    ends_in_s: float | None = 0.1  # After SIGTERM; None: only SIGKILL ends it.
    survives_kills: int = 0  # As one that hangs in the kernel does.
    listens_elsewhere: bool = False
    port_taken: bool = False  # By another program, which answers as a backend does, as soon as it starts.
    refuses_to_free: str = ""
    cannot_start: str = ""


@dataclass(eq=False)
class ScriptedProcess:
    key: ProcessKey
    instance: str
    command: ProcessCommand
    port: int
    pid: int
    script: Script
    born_s: float
    foreign_ports: set[int]
    code: int | None = None
    kills: int = 0
    looks: int = 0
    over: anyio.Event = field(default_factory=anyio.Event)

    @property
    def age_s(self) -> float:
        return anyio.current_time() - self.born_s

    def die(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self.over.set()

    async def wait(self) -> int:
        if self.script.exits_s is not None:
            with anyio.move_on_after(max(self.script.exits_s - self.age_s, 0)):
                await self.over.wait()
            self.die(self.script.code)
        await self.over.wait()
        assert self.code is not None
        return self.code

    async def end(self, grace: timedelta) -> bool:
        if self.code is None:
            patience_s = self.script.ends_in_s
            if patience_s is not None and patience_s < grace.total_seconds():
                await anyio.sleep(patience_s)
                self.die(SIGTERM)
                return True
            await anyio.sleep(grace.total_seconds())
            self.kills += 1
            if self.kills <= self.script.survives_kills:
                return False
            self.die(SIGKILL)
        return True

    def oom_killed(self) -> bool | None:
        return None

    def stderr_tail(self, lines: int) -> Sequence[str]:
        return self.script.stderr[-lines:]

    async def listener_on(self, port: int) -> PortListener:
        if port in self.foreign_ports:
            return PortListener.OTHERS
        return PortListener.OURS if port in self.listening() else PortListener.NONE

    def listening(self) -> frozenset[int]:
        return frozenset({self.port + 1000 if self.script.listens_elsewhere else self.port})


class ScriptedMachine:
    """Implements Machine and Backends. `script_for` is asked once for each process that starts."""

    def __init__(self, script_for: Callable[[ProcessKey], Script] = lambda _key: Script()) -> None:
        self.started: list[ScriptedProcess] = []
        self.freed: list[ProcessKey] = []
        self.foreign_ports: set[int] = set()
        self.stamps: dict[Path, str] = {}
        self._script_for = script_for

    @property
    def alive(self) -> list[ScriptedProcess]:
        return [process for process in self.started if process.code is None]

    # Machine.

    async def start(self, key: ProcessKey, instance: str, command: ProcessCommand) -> ScriptedProcess:
        script = self._script_for(key)
        await anyio.lowlevel.checkpoint()
        if script.cannot_start:
            raise ChildFailed(script.cannot_start)
        port = int(command.argv[-1].rpartition(":")[2])
        for other in self.alive:
            assert other.key != key, f"two live processes for {key}"
            assert other.port != port, f"two live processes on port {port}"
        process = ScriptedProcess(
            key,
            instance,
            command,
            port,
            1000 + len(self.started),
            script,
            anyio.current_time(),
            self.foreign_ports,
        )
        if script.port_taken:
            self.foreign_ports.add(port)
        self.started.append(process)
        return process

    def port_free(self, port: int) -> bool:
        return port not in self.foreign_ports and all(process.port != port for process in self.alive)

    def folder_stamp(self, folder: Path) -> str:
        return self.stamps.get(folder, "1")

    # Backends.

    async def health(self, port: int, recipe: Recipe) -> HealthResult:
        await anyio.sleep(CALL_S)
        if port in self.foreign_ports:
            return HealthResult(True)
        process = next((process for process in self.alive if process.port == port), None)
        if process is None or process.script.listens_elsewhere:
            return HealthResult(False, refused=True, words="connection refused")
        script, age_s = process.script, process.age_s
        if script.closes_port_s is not None and age_s >= script.closes_port_s:
            return HealthResult(False, refused=True, words="connection refused")
        if script.ready_s is None or age_s < script.ready_s:
            return HealthResult(False, refused=True, words="connection refused")
        process.looks += 1
        if process.looks in script.refused_looks:
            return HealthResult(False, refused=True, words="connection refused")
        if script.silent[0] <= age_s < script.silent[1]:
            return HealthResult(False, words="no answer within 2 s")
        return HealthResult(True)

    async def free(self, port: int, recipe: Recipe) -> str:
        process = next((process for process in self.alive if process.port == port), None)
        if process is None:
            return "nobody is there"
        self.freed.append(process.key)
        await anyio.sleep(CALL_S)
        return process.script.refuses_to_free
