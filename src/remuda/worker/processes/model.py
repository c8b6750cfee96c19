"""What the supervisor of backend processes is asked for, what it reports, how long it waits for them, and
which port each process gets. Pure.

Time is an argument, by a clock that is never set: a machine may learn the date long after its start.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from remuda.core import limits
from remuda.core.errors import Unavailable
from remuda.host.restarts import RestartPolicy
from remuda.wire.process_keys import ProcessKey

RESTARTS = RestartPolicy(
    first=timedelta(seconds=limits.BACKEND_RESTART_FIRST_S),
    most=timedelta(seconds=limits.BACKEND_RESTART_MOST_S),
    healthy_after=timedelta(seconds=limits.BACKEND_HEALTHY_AFTER_S),
    give_up_after=limits.BACKEND_SHORT_LIVES_MAX,
)
_WORDS_CHARS_MAX: Final = 200


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


@dataclass(frozen=True, slots=True)
class HealthResult:
    """How a backend took a health call. `refused`: nothing listens, so it is not merely busy."""

    healthy: bool = False
    refused: bool = False
    words: str = ""

    @classmethod
    def when_refused(cls, port: int) -> "HealthResult":
        return cls(refused=True, words=f"nothing listens on port {port}")

    @classmethod
    def when_silent(cls, port: int, limit_s: float) -> "HealthResult":
        return cls(words=f"no answer on port {port} within {limit_s:g} s")


def in_short(text: str) -> str:
    """Enough of what a backend says of itself."""
    return text[:_WORDS_CHARS_MAX]


class ProcessPhase(StrEnum):
    """The life of one key. Entry and port stay until the process is gone, while STOPPING too."""

    STARTING = "starting"  # The process exists, or is about to; it has not answered yet.
    READY = "ready"
    UNRESPONSIVE = "unresponsive"  # It lives and does not answer: busy, or suspended; not dead.
    WAITING = "waiting"  # It exited and is restarted after a delay.
    FAILED = "failed"  # It exited too often. Stays listed until the key is started or stopped.
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
    """A key as it stands. `instance` changes with every new process, so one is not mistaken for another."""

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
    restarts: int = 0  # Times it was restarted after it exited.
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


@dataclass(frozen=True, slots=True)
class _Past:
    """Which key had a port last, and since when it is free."""

    key: ProcessKey
    released_s: float


class PortBook:
    """A port has one owner at most. After use it rests: a caller with an old address must find nothing
    rather than another process. Then the key that had it is preferred for a while."""

    def __init__(self, first: int, last: int) -> None:
        assert 0 < first <= last, "settings are checked before"
        self._range = range(first, last + 1)
        self._held: dict[int, ProcessKey] = {}
        self._past: dict[int, _Past] = {}

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._held)

    def take(self, key: ProcessKey, now_s: float, free: Callable[[int], bool]) -> int:
        """A port that is free now. Raises Unavailable when there is none in the range."""
        for port in self._candidates(key, now_s):
            if free(port):
                self._held[port] = key
                self._past.pop(port, None)
                return port
        raise Unavailable(
            f"no port from {self._range[0]} to {self._range[-1]} is free for {key}"
            f" ({len(self._held)} held by backends, the rest resting or taken by other programs)",
            hint="stop a model on this node, or raise --grpc-max-port",
        )

    def release(self, port: int, now_s: float) -> None:
        """Its process is gone. A port without an owner stays as it is."""
        key = self._held.pop(port, None)
        if key is not None:
            self._past[port] = _Past(key, now_s)

    def _candidates(self, key: ProcessKey, now_s: float) -> Iterator[int]:
        """Best first: the key's own, unclaimed ones, unused ones, then what others had."""
        rested = sorted(
            (now_s - past.released_s, port)
            for port, past in self._past.items()
            if now_s - past.released_s >= limits.PORT_QUARANTINE_S
        )
        yield from (port for _, port in rested if self._past[port].key == key)
        others = [(rest_s, port) for rest_s, port in reversed(rested) if self._past[port].key != key]
        yield from (port for rest_s, port in others if rest_s >= limits.PORT_AFFINITY_S)
        yield from (port for port in self._range if port not in self._held and port not in self._past)
        yield from (port for rest_s, port in others if rest_s < limits.PORT_AFFINITY_S)
