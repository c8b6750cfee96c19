"""What keys take: counted in memory for each key, model, node and day, and written to the store in batches,
each exactly once. Nothing of it is on a request's way.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core import limits
from remuda.core.errors import RemudaError
from remuda.core.prices import Money

log = structlog.get_logger()
_ROWS_PER_BATCH_MAX: Final = 500


class UsagePlace(NamedTuple):
    """What is counted by. An empty key: no key was asked for."""

    day: date  # Of UTC.
    key: str
    model: str
    node: str  # Its name; empty: none answered.


@dataclass(slots=True)
class KeyUsage:
    """`failed`: requests that were refused or ended with an error, or whose client left; they are among
    `requests`, too."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: Money = 0  # What servers were paid for, as their budgets count it.

    def add(self, other: "KeyUsage") -> None:
        self.requests += other.requests
        self.failed += other.failed
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.cost += other.cost


class UsageField(StrEnum):
    """By which usage can be grouped."""

    DAY = "day"
    KEY = "key"
    MODEL = "model"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """`until` is the last day. Empty names: all."""

    since: date
    until: date
    by: tuple[UsageField, ...]
    key: str = ""  # By its id or name.
    model: str = ""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What it is not grouped by is None."""

    usage: KeyUsage
    day: date | None = None
    key: str | None = None  # Its id.
    key_name: str = ""
    model: str | None = None
    node: str | None = None


class UsageStore(Protocol):
    async def add(self, writer: str, batch: int, used: Mapping[UsagePlace, KeyUsage]) -> None:
        """Add what was used, unless this batch of this writer was added before."""
        ...

    async def rows(self, query: UsageQuery) -> Sequence[UsageRow]:
        """In order of what they are grouped by. At most limits.USAGE_ROWS_MAX and one more."""
        ...


class UsageCounter:
    """`writer` is new with every start."""

    def __init__(self, store: UsageStore, writer: str) -> None:
        self._store = store
        self._writer = writer
        self._counted: dict[UsagePlace, KeyUsage] = {}
        self._batch: dict[UsagePlace, KeyUsage] = {}  # Perhaps written already.
        self._number = 0
        self._writing = anyio.Lock()
        self._lost = 0

    def note(
        self,
        day: date,
        key: str,
        model: str,
        node: str,
        tokens: tuple[int, int],
        *,
        failed: bool = False,
        costs: Sequence[tuple[str, Money]] = (),
    ) -> None:
        """One request was over on that day of UTC; it took so many tokens, read and written. `costs`: what
        servers were given for it, of which only the last may have answered."""
        used = self._used(UsagePlace(day, key, model, node))
        used.requests += 1
        used.failed += failed
        used.prompt_tokens += tokens[0]
        used.completion_tokens += tokens[1]
        for server, cost in costs:
            self._used(UsagePlace(day, key, model, server)).cost += cost

    async def write(self) -> None:
        """Everything that is not written yet, in batches."""
        async with self._writing:
            while self._batch or self._counted:
                if not self._batch:
                    self._number += 1
                    places = list(self._counted)[:_ROWS_PER_BATCH_MAX]
                    self._batch = {place: self._counted.pop(place) for place in places}
                await self._store.add(self._writer, self._number, self._batch)
                self._batch = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        try:
            while True:
                await anyio.sleep(limits.USAGE_WRITE_EVERY_S)
                await self._try_to_write()
        finally:
            with anyio.move_on_after(limits.STORE_CALL_S, shield=True):
                await self._try_to_write()

    async def _try_to_write(self) -> None:
        try:
            await self.write()
        except RemudaError as error:
            log.warning("usage_not_written", reason=error.message, entries=len(self._counted))
        if self._lost:
            log.error("usage_lost", requests=self._lost, why="too much waits to be written")
            self._lost = 0

    def _used(self, place: UsagePlace) -> KeyUsage:
        return self._counted.get(place) or self._begun(place)

    def _begun(self, place: UsagePlace) -> KeyUsage:
        """While the store is away for long: the key's, without model and node, and at last without key."""
        if len(self._counted) >= limits.USAGE_WAITING_MAX:
            place = place._replace(model="", node="")
        if place not in self._counted and len(self._counted) >= 2 * limits.USAGE_WAITING_MAX:
            self._lost += 1
            return KeyUsage()
        return self._counted.setdefault(place, KeyUsage())


def in_all(rows: Collection[UsageRow]) -> KeyUsage:
    total = KeyUsage()
    for row in rows:
        total.add(row.usage)
    return total
