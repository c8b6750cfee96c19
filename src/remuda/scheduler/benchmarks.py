"""How fast models were measured to be, and where: for people to compare, and for placement."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from remuda.core.ids import NodeId
from remuda.fleet.health import Standing

KEPT_PER_PLACE: Final = 20  # Measurements of one model on one node with so many streams; older ones go.


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of so many streams at once, on one node or on all that have the model together."""

    model: str
    node: str  # Its name; empty: on whichever node was chosen for each request.
    streams: int
    requests: int
    failed: int
    prompt_tokens: int  # Of one request, on average.
    completion_tokens: int  # Likewise.
    first_token_ms: float  # The median over all requests.
    first_token_p95_ms: float
    tokens_per_s: float  # Of all streams together.
    prompt_tokens_per_s: float  # Read before the first token, of a request by itself; 0: not measured.


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One that is kept. `revision` and `backend` are the model's of that moment."""

    id: int
    measured: Measured
    revision: str
    backend: str
    at: datetime


class BenchmarkStore(Protocol):
    async def benchmarks(self, model: str = "") -> Sequence[Benchmark]:
        """Those of one model, or of all; the newest first."""
        ...

    async def keep(self, measured: Sequence[Measured], revision: str, backend: str) -> Sequence[Benchmark]:
        """Of one model. The oldest of what is kept for the same place go, beyond `KEPT_PER_PLACE`."""
        ...


def answer_speed(one: Measured) -> float:
    """Tokens per second of one answer, after its first token, as they are counted in real requests. 0: that
    cannot be told, as of several at once."""
    if one.streams != 1 or not one.node or one.tokens_per_s <= 0 or one.completion_tokens < 2:
        return 0.0
    writing_s = one.completion_tokens / one.tokens_per_s - one.first_token_ms / 1000
    return (one.completion_tokens - 1) / writing_s if writing_s > 0 else 0.0


class RankedBenchmarks:
    """A BenchmarkStore. What is kept in it also counts as the speed of these nodes, by which they are ranked:
    `measured` takes note of it."""

    def __init__(
        self,
        store: BenchmarkStore,
        standings: Callable[[], Awaitable[Sequence[Standing]]],
        measured: Callable[[NodeId, str, float], None],
    ) -> None:
        self._store = store
        self._standings = standings
        self._measured = measured

    async def benchmarks(self, model: str = "") -> Sequence[Benchmark]:
        return await self._store.benchmarks(model)

    async def keep(self, measured: Sequence[Measured], revision: str, backend: str) -> Sequence[Benchmark]:
        kept = await self._store.keep(measured, revision, backend)
        ids = {one.node.name: one.node.id for one in await self._standings()}
        for one in measured:
            speed = answer_speed(one)
            if speed and one.node in ids:
                self._measured(ids[one.node], one.model, speed)
        return kept
