"""How fast models were measured to be, and where: for people to compare, and for placement. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

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
