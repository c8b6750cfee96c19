"""Measures how fast nodes answer, load and receive files, and keeps it, so that placement goes by it."""

from collections.abc import Callable
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.scheduler.measured_speed import (
    ANSWER_TOKENS_MIN,
    BYTES_MIN,
    MeasuredRate,
    Rate,
    RateBook,
    RateKey,
    RateStore,
    is_news,
    moved,
    moved_time,
)

log = structlog.get_logger(__name__)

_EVERY_S: Final = 10.0
_UNWRITTEN_MAX: Final = 10_000  # Nodes times models; what comes then is not measured until some is written.


class SpeedKeeper:
    """Every frontend runs it with what it sees itself. `about` tells a model's backend and the size of its
    weights."""

    def __init__(self, store: RateStore, about: Callable[[str], tuple[str, int]]) -> None:
        self._store = store
        self._about = about
        self._book = RateBook()
        self._stored: dict[RateKey, float] = {}
        self._seen: dict[RateKey, float] = {}

    def known(self) -> RateBook:
        return self._book

    def answered(self, node: NodeId, model: str, tokens: int, seconds: float) -> None:
        """So many tokens came after the first, in so long. Costs a microsecond: it is called per request."""
        if tokens >= ANSWER_TOKENS_MIN and seconds > 0:
            self._note(RateKey(Rate.TOKENS, node, model), tokens / seconds)

    def moved_bytes(self, kind: Rate, node: NodeId, model: str, size_bytes: int, seconds: float) -> None:
        if size_bytes >= BYTES_MIN and seconds > 0:
            self._note(RateKey(kind, node, model), size_bytes / seconds)

    def took(self, kind: Rate, node: NodeId, model: str, seconds: float) -> None:
        key = RateKey(kind, node, model)
        if self._has_place(key):
            self._seen[key] = moved_time(self._known(key), seconds)

    def benchmarked(self, node: NodeId, model: str, tokens_per_s: float) -> None:
        """Measured while it did nothing else: this counts, also where it is slower than what was known."""
        key = RateKey(Rate.TOKENS, node, model)
        if tokens_per_s > 0 and self._has_place(key):
            self._seen[key] = tokens_per_s

    def _note(self, key: RateKey, per_s: float) -> None:
        if self._has_place(key):
            self._seen[key] = moved(self._known(key), per_s)

    def _has_place(self, key: RateKey) -> bool:
        return key in self._seen or len(self._seen) < _UNWRITTEN_MAX

    def _known(self, key: RateKey) -> float | None:
        known = self._seen.get(key)
        return self._stored.get(key) if known is None else known

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            try:
                await self.pass_once()
            except RemudaError as error:  # The store is away; what is known stays.
                log.warning("measured_speed_not_kept", reason=error.message)
            await anyio.sleep(_EVERY_S)

    async def pass_once(self) -> None:
        await self._read()
        seen, self._seen = self._seen, {}
        news = [
            self._rate(key, per_s) for key, per_s in seen.items() if is_news(self._stored.get(key), per_s)
        ]
        if not news:
            self._seen = {**seen, **self._seen}
            return
        try:
            await self._store.keep(news)
        except RemudaError:
            self._seen = {**seen, **self._seen}
            raise
        await self._read()

    async def _read(self) -> None:
        rates = await self._store.rates()
        self._stored = {one.key: one.per_s for one in rates}
        self._book = RateBook.of(rates)

    def _rate(self, key: RateKey, per_s: float) -> MeasuredRate:
        if key.kind is Rate.BACKEND:
            return MeasuredRate(key, per_s, backend=key.model)
        return MeasuredRate(key, per_s, *self._about(key.model))
