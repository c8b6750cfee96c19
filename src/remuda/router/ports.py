"""What the router needs of the scheduler, and how it reports what it found."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from remuda.inference.failures import UpstreamFailed
from remuda.router.table import Route


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


Meanwhile = Callable[[LoadStatus], Awaitable[None]]


class Loading(Protocol):
    async def bring(self, model: str, wait_s: float | None, meanwhile: Meanwhile) -> None:
        """Have the model loaded by somebody, and return as soon as it may have a route. `meanwhile` is told
        about every second how far it is. Leaving this early stops nothing.

        ModelLoading when the wait is over, LoadFailed with the cause when it failed, NoCapacity with a reason
        for each node when no node can take it.
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
