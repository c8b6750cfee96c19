"""What the supervisor of backend processes is asked for, what it reports, and how long it waits for them.
Data only."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from remuda.core import limits
from remuda.host.restarts import RestartPolicy
from remuda.wire.process_keys import ProcessKey

RESTARTS = RestartPolicy(
    first=timedelta(seconds=limits.BACKEND_RESTART_FIRST_S),
    most=timedelta(seconds=limits.BACKEND_RESTART_MOST_S),
    healthy_after=timedelta(seconds=limits.BACKEND_HEALTHY_AFTER_S),
    give_up_after=limits.BACKEND_SHORT_LIVES_MAX,
)


@dataclass(frozen=True, slots=True)
class BackendTimeouts:
    """`start` is for those that speak gRPC; the others say themselves how long they take."""

    start: timedelta = timedelta(seconds=limits.BACKEND_START_S)
    call: timedelta = timedelta(seconds=limits.BACKEND_HEALTH_CALL_S)
    watch: timedelta = timedelta(seconds=limits.BACKEND_WATCH_EVERY_S)  # Between two looks at a ready one.
    free: timedelta = timedelta(seconds=limits.BACKEND_FREE_S)
    grace: timedelta = timedelta(seconds=limits.BACKEND_GRACE_S)  # Between SIGTERM and SIGKILL.
    restarts: RestartPolicy = RESTARTS


USUAL = BackendTimeouts()


GRPC_TOKEN_VARIABLE: Final = "LOCALAI_GRPC_AUTH_TOKEN"
"""In the environment of a gRPC backend: what its callers have to present."""


class Protocol(StrEnum):
    GRPC = "grpc"  # Dialled directly by frontends.
    HTTP = "http"  # OpenAI-compatible, on loopback; reached through the worker's own HTTP server.


class ProcessPhase(StrEnum):
    """The life of one key. Entry and port stay until the process is gone, while STOPPING too."""

    STARTING = "starting"  # The process exists, or is about to; it has not answered yet.
    READY = "ready"
    UNRESPONSIVE = "unresponsive"  # It lives and does not answer: busy, or suspended; not dead.
    WAITING = "waiting"  # It ended by itself and is started again after a delay.
    FAILED = "failed"  # It ended by itself too often. Stays listed until somebody starts or stops the key.
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class ProcessCommand:
    """What to execute. `env` is the whole environment: nothing else is inherited."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a backend is started on any port. `{port}` in an argument or a value of `env` stands for it."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)
    protocol: Protocol = Protocol.GRPC
    health_path: str = "/health"  # HTTP only: answers 200 once requests can be served.
    start_limit: timedelta = timedelta(seconds=limits.BACKEND_START_S)

    @property
    def token(self) -> str:
        """What opens the backend; empty where it was given none."""
        return self.env.get(GRPC_TOKEN_VARIABLE, "")

    def command(self, port: int) -> ProcessCommand:
        return ProcessCommand(
            tuple(_with_port(argument, port) for argument in self.argv),
            self.cwd,
            {name: _with_port(value, port) for name, value in self.env.items()},
        )


def _with_port(text: str, port: int) -> str:
    return text.replace("{port}", str(port))


@dataclass(frozen=True, slots=True)
class Launch:
    """One process that is wanted. `names` are all names of its backend: as asked, its folder's, its alias."""

    key: ProcessKey
    backend: str
    names: frozenset[str]
    folder: Path
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A key as it stands. `instance` changes with every new process, so nobody mistakes one for another."""

    key: ProcessKey
    backend: str
    names: frozenset[str]
    folder: Path
    protocol: Protocol
    phase: ProcessPhase
    instance: str = ""
    pid: int = 0  # 0: there is no process now.
    port: int = 0
    since: datetime | None = None  # Of this phase.
    restarts: int = 0  # Times it was started again after it ended by itself.
    trouble: str = ""  # Why it is not ready, or why its last process ended.

    def moved(self, phase: ProcessPhase, since: datetime, trouble: str = "") -> "ProcessStatus":
        return replace(self, phase=phase, since=since, trouble=trouble)


@dataclass(frozen=True, slots=True)
class Stopped:
    """What became of one key that was to stop."""

    key: ProcessKey
    port: int
    freed: bool  # The backend said that it let go of its memory.
    gone: bool  # No process of it is left.
    trouble: str = ""
    not_freed: str = ""  # Why it kept its memory to its end, although it was asked to let go of it.
