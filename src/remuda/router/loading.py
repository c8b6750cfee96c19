"""How the router has a model loaded: what it needs of the scheduler for that, how far a load is, what a
request waits for, in words, and why it is not answered by any replica.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from remuda.core.errors import NoCapacity, NotFound, PeerFailed, Unavailable
from remuda.inference.failures import UpstreamFailed
from remuda.router.table import Route
from remuda.scheduler.ranking import NO_WISHES, NodeWishes

_CAUSES_MAX: Final = 32  # Of one request; the rest counts as one.
_SHORT_S: Final = 0.001  # Less is not worth a word.


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """How far a model's load is, in the words of the contract's loading object."""

    model: str
    state: str = "pending"  # pending, installing, staging, loading or failed.
    node: str = ""  # Its name.
    progress: float = 0.0  # 0..100.
    bytes_sent: int = 0
    total_bytes: int = 0
    file_index: int = 0
    total_files: int = 0
    eta_seconds: int | None = None
    waits_for: str = ""  # Why nothing is done for it yet; ours, for people.
    placed: bool = False  # Its node is chosen, though its name is not known here yet.


Meanwhile = Callable[[LoadStatus], Awaitable[None]]


class Loading(Protocol):
    async def bring(
        self, model: str, wait_s: float | None, meanwhile: Meanwhile, wishes: NodeWishes = NO_WISHES
    ) -> None:
        """Have the model loaded, and return as soon as it may have a route. `meanwhile` receives
        about every second how far it is. Leaving this early stops nothing.

        ModelLoading when the wait is over, ModelLoadFailed with the cause when it failed, NoCapacity with a
        reason for each node when no node can take it.
        """
        ...

    def suspect(self, route: Route, why: UpstreamFailed) -> None:
        """A request found this replica missing, or another model in its place: begin to look."""
        ...

    async def gone(self, route: Route) -> bool:
        """Whether a suspect is gone, and forgotten. Waits for the look to end."""
        ...

    async def removed(self, route: Route) -> bool:
        """Whether its node was removed from the fleet; not, where that cannot be found out soon."""
        ...


class ModelUnknown(NotFound):
    code = "model_not_found"
    param = "model"


class ModelLoading(Unavailable):
    """It is on its way, and the wait was over first."""

    code = "model_loading"

    def __init__(self, message: str, status: LoadStatus, retry_after_s: int) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class ModelLoadFailed(PeerFailed):
    """It was tried, and this is why it does not run."""

    code = "model_load_failed"
    http_status = 503


class ModelUnloaded(Unavailable):
    """It was unloaded while requests waited for it. The next request has it loaded again."""

    code = "model_unloaded"
    retry_after_s = 5


class BackendMissing(NoCapacity):
    """No node has the model's backend, and no gallery knows it."""

    code = "backend_missing"


class Overloaded(Unavailable):
    """As many wait as may wait."""

    code = "overloaded"
    http_status = 429
    retry_after_s = 5


class WaitNotes:
    """`at_s`: by a clock that never goes back."""

    def __init__(self) -> None:
        self.over: list[tuple[str, float]] = []
        self._cause = ""
        self._began_s = 0.0

    def begin(self, cause: str, at_s: float) -> None:
        """From now on it waits for this; for the same as before, if that is what it waited for."""
        if cause == self._cause:
            return
        if self._cause and cause.startswith(f"{self._cause} on "):  # Now it is known where.
            self._cause = cause
            return
        if self._cause and len(self.over) >= _CAUSES_MAX:
            return
        self.end(at_s)
        self._cause, self._began_s = cause, at_s

    def reword(self, before: str, after: str) -> None:
        """What it waits for has changed, or is known better by now."""
        if self._cause == before:
            self._cause = after

    def loaded(self, model: str) -> None:
        """It has a replica now. Where none of the looks fell into its load, that is what took so long."""
        self.reword(load_cause(LoadStatus(model)), f"{model} to be loaded")

    def end(self, at_s: float) -> None:
        """It has what it waited for, or has given up."""
        cause, self._cause = self._cause, ""
        took_s = at_s - self._began_s
        if not cause or took_s < _SHORT_S:
            return
        if self.over and self.over[-1][0] == cause:
            took_s += self.over.pop()[1]
        self.over.append((cause, took_s))


def load_cause(status: LoadStatus) -> str:
    """What a load waits for that is so far. No figures: it is one cause as long as it lasts."""
    where = f" on {status.node}" if status.node else ""
    match status.state:
        case _ if status.waits_for:
            return f"room for {status.model} ({status.waits_for})"
        case "installing":
            return f"its backend to be installed{where}"
        case "staging" if 0 < status.progress < 100:  # Files that are there already are 100 % at once.
            return f"the files of {status.model} to be copied{where.replace(' on ', ' to ')}"
        # Also while it is only looked whether anything has to be copied or installed.
        case _ if status.node or status.placed:
            return f"{status.model} to be loaded{where}"
        case _:
            return f"a node to be chosen for {status.model}"


def busy_cause(model: str, replicas: int, at_the_end: int | None = None, *, batch: bool = False) -> str:
    """`replicas` when the wait began. `at_the_end`: when it was over, if it is."""
    if batch:
        return f"a replica of {model} that no other key needs, for its key is of the batch class"
    if at_the_end in (None, replicas):
        return f"a free replica of {model}: {_all(replicas)} busy"
    left = str(at_the_end) if at_the_end else "none"
    return f"a free replica of {model}: all were busy ({replicas} at first, {left} at the end)"


def servers_busy_cause(model: str, servers: Sequence[Route]) -> str:
    """Of a model that runs nowhere else."""
    return f"room on a server for {model}: {_have_all_they_take(servers)}"


def all_busy(model: str, routes: Sequence[Route], waited_s: float) -> Overloaded:
    """Nothing became free in time."""
    if routes[0].server:
        return Overloaded(
            f"{_have_all_they_take(routes)}, and had for the {waited_s:.0f} s that this request for {model} "
            "has waited",
            hint="try again in a while; an admin lets a server be asked more at once with: "
            f"remuda servers edit {routes[0].server} --parallel N",
        )
    return Overloaded(
        f"every replica of {model} was busy for {waited_s:.0f} s",
        hint="try again in a while, or let more replicas be loaded",
    )


def _have_all_they_take(servers: Sequence[Route]) -> str:
    names = list(dict.fromkeys(route.server for route in servers))
    if len(names) == 1:
        return f"the server {names[0]} has as many requests as it may be sent at once"
    return f"the servers {', '.join(names)} have as many requests as they may be sent at once"


def _all(replicas: int) -> str:
    return "the only one was" if replicas == 1 else f"all {replicas} were"
