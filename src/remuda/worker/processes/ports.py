"""What the supervisor needs of the machine and of the backends; the command handlers of the supervisor."""

from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Protocol

from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.model import HealthResult, Launch, ProcessCommand, ProcessStatus, Recipe, Stopped


class PortListener(Enum):
    """Who takes connections to a port."""

    OURS = "ours"  # The process or one that it started, and no other; also when that is unknown.
    OTHERS = "others"
    NONE = "none"


class Process(Protocol):
    """One process that the supervisor started, with everything it starts in turn."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """The exit code of the process itself; minus the signal's number when a signal ended it."""
        ...

    async def end(self, grace: timedelta) -> bool:
        """SIGTERM to the group, SIGKILL after the grace; whether nothing of it is left. Safe to repeat."""
        ...

    def stderr_tail(self, lines: int) -> Sequence[str]:
        """The last lines of this process, not of one before it under the same key."""
        ...

    def oom_killed(self) -> bool | None:
        """Whether the kernel killed something for lack of memory since it started; None when that cannot be
        tell."""
        ...

    async def listener_on(self, port: int) -> PortListener:
        """Which process has this port, on which a connection was just accepted."""
        ...

    def listening(self) -> frozenset[int] | None:
        """The ports that it and those it started listen on; None when that cannot be told."""
        ...


class Machine(Protocol):
    """Where processes run. Real, or simulated in tests."""

    async def start(self, key: ProcessKey, instance: str, command: ProcessCommand) -> Process:
        """Its output goes to the logs under `key`. Raises ChildFailed when it cannot be started at all."""
        ...

    def port_free(self, port: int) -> bool:
        """Whether a process could listen on it now."""
        ...

    def folder_stamp(self, folder: Path) -> str:
        """Changes when the folder is replaced by another of the same name; empty when there is none."""
        ...


class Backends(Protocol):
    """Calls to a backend process on this machine. Each is bounded and none raises."""

    async def health(self, port: int, recipe: Recipe) -> HealthResult: ...

    async def free(self, port: int, recipe: Recipe) -> str:
        """Ask it to let go of its memory, patiently for 5 s; empty when it did, else why not."""
        ...


class Supervision(Protocol):
    """What the command handlers may ask of the supervisor."""

    def replicas(self) -> Sequence[ProcessStatus]:
        """Every key with an entry, whatever its phase, sorted by key."""
        ...

    def usable(self, key: ProcessKey, name: str) -> ProcessStatus | None:
        """The replica under this key if it can be relied on now: ready, alive, of the backend called `name`,
        and running from the folder that is installed now."""
        ...

    async def confirm(self, key: ProcessKey) -> None:
        """Look now whether the process under this key takes connections, if it is believed to. One that has
        ended a moment ago is no longer usable when this returns; one that has closed its port is stopped."""
        ...

    def named(self, text: str) -> Sequence[ProcessKey]:
        """The keys meant by a backend's name, a model id or a process key, as backend.stop understands it."""
        ...

    async def start(self, launch: Launch) -> ProcessStatus:
        """Have this process ready: the one there if it is usable, else a new one in place of any other.

        Raises BackendFailed, with the reason and the last lines it wrote, when it does not become ready;
        Unavailable when no port is free.
        """
        ...

    async def stop(self, keys: Sequence[ProcessKey], *, free: bool) -> Sequence[Stopped]:
        """Stop these, side by side, and wait until each is gone or cannot be ended. Keys without an entry
        are left out of the answer. A second stop of one key waits for the first."""
        ...

    async def free(self, key: ProcessKey) -> str:
        """Ask the backend to let go of its memory; the process stays. Empty when it did, else why not."""
        ...
