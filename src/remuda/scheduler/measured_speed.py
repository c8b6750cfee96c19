"""How fast nodes were seen to be, with real requests and real loads, and what is to be expected of another
model there. Pure.

What is expected is always said with what it is taken from: the same model, or one like it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from remuda.core.ids import NodeId

ANSWER_TOKENS_MIN: Final = 8  # Fewer tell little about how fast an answer was written.
BYTES_MIN: Final = 1 << 20  # Likewise of loads and copies.
_ALIKE: Final = 4.0  # Weights of so many times the size, or a part of it, say nothing of each other.
_NEWS: Final = 0.1  # A change by less than this share is not written.
_FASTER, _SLOWER = 0.5, 0.05  # How far one measurement moves what is known.
_SECONDS_LEAST: Final = 0.001  # What took less counts as this.


class Rate(StrEnum):
    TOKENS = "tokens"  # Written per second, in one answer.
    LOAD = "load"  # Bytes of its weights that a backend takes in per second.
    COPY = "copy"  # Bytes of a model's files that arrive per second.
    # How often in a second it could be done, one after the other: 1 in 4 s is 0.25.
    UNLOAD = "unload"  # From telling an idle replica to stop until its worker says that it has.
    INSTALL = "install"  # Of the model's backend, with the start of a process of it.
    BACKEND = "backend"  # Of a backend that people had installed; the key has its name for the model's.


class RateKey(NamedTuple):
    kind: Rate
    node: NodeId
    model: str


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    key: RateKey
    per_s: float
    backend: str = ""
    weights_bytes: int = 0  # Of the model then; 0: not known.


class RateStore(Protocol):
    async def rates(self) -> Sequence[MeasuredRate]:
        """What is kept of nodes and models that are still there."""
        ...

    async def keep(self, rates: Sequence[MeasuredRate]) -> None:
        """These replace what was known under their keys."""
        ...


# So many bytes of a model took so many seconds on a node.
MoveTimed = Callable[[Rate, NodeId, str, int, float], None]
# Something took so many seconds on a node, for a model: a kind that is not counted in bytes or tokens.
TimeTaken = Callable[[Rate, NodeId, str, float], None]
# So many tokens of a model's answer came after its first, in so many seconds. Called for each request.
AnswerTimed = Callable[[NodeId, str, int, float], None]


def not_timed(*told: object) -> None:
    """For where nothing is measured."""


@dataclass(frozen=True, slots=True)
class Expected:
    """`like`: the model that it was measured with; empty: the very same."""

    per_s: float
    like: str = ""


@dataclass(frozen=True, slots=True)
class Took:
    """`elsewhere`: on other nodes, for it was never done on this one."""

    seconds: float
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class RateBook:
    """Everything that was measured, by kind and node."""

    by_place: Mapping[tuple[Rate, NodeId], Sequence[MeasuredRate]] = field(
        default_factory=lambda: MappingProxyType({})
    )

    @classmethod
    def of(cls, rates: Iterable[MeasuredRate]) -> "RateBook":
        places = defaultdict[tuple[Rate, NodeId], list[MeasuredRate]](list)
        for one in rates:
            places[one.key.kind, one.key.node].append(one)
        return cls(dict(places))

    def tokens_per_s(self, node: NodeId, model: str, backend: str, weights_bytes: int) -> Expected | None:
        """Of the model itself, or else of the one with this backend that is nearest to it in size: a token
        takes all weights to be read once."""
        there = self.by_place.get((Rate.TOKENS, node), ())
        for one in there:
            if one.key.model == model:
                return Expected(one.per_s)
        if not weights_bytes:
            return None
        alike = [one for one in there if one.backend == backend and _alike(one.weights_bytes, weights_bytes)]
        if not alike:
            return None
        nearest = min(alike, key=lambda one: (_times(one.weights_bytes, weights_bytes), one.key.model))
        return Expected(nearest.per_s * nearest.weights_bytes / weights_bytes, nearest.key.model)

    def bytes_per_s(self, kind: Rate, node: NodeId, model: str) -> float | None:
        """Of the model itself, or else the median of what was measured there."""
        there = self.by_place.get((kind, node), ())
        own = next((one.per_s for one in there if one.key.model == model), None)
        return own if own is not None or not there else median(one.per_s for one in there)

    def unload_s(self, node: NodeId, model: str) -> Took | None:
        per_s = self.bytes_per_s(Rate.UNLOAD, node, model)
        return None if per_s is None else Took(1 / per_s)

    def install_s(self, node: NodeId, backend: str) -> Took | None:
        """Of that backend on the node, or else the median of the nodes on which it was installed."""
        by_node = defaultdict[NodeId, list[float]](list)
        for (kind, place), there in self.by_place.items():
            if kind in (Rate.INSTALL, Rate.BACKEND):
                by_node[place] += [one.per_s for one in there if one.backend == backend]
        if here := by_node[node]:
            return Took(1 / median(here))
        elsewhere = [1 / median(there) for there in by_node.values() if there]
        return Took(median(elsewhere), elsewhere=True) if elsewhere else None


def _times(one: int, other: int) -> float:
    return max(one, other) / min(one, other)


def _alike(one: int, other: int) -> bool:
    return one > 0 and other > 0 and _times(one, other) <= _ALIKE


def moved(known: float | None, seen: float, slower: float = _SLOWER) -> float:
    """What is known after another measurement. An answer that was written beside others is slower than the
    node can be, so what is known falls slowly."""
    if known is None:
        return seen
    return known + (seen - known) * (_FASTER if seen > known else slower)


def moved_time(known: float | None, seconds: float) -> float:
    """The same for what took so long, in times a second: the last time counts half, slower or not."""
    return moved(known, 1 / max(seconds, _SECONDS_LEAST), _FASTER)


def is_news(written: float | None, known: float) -> bool:
    return written is None or abs(known - written) > written * _NEWS


_STEP: Final = 1.25  # Nodes whose speeds differ by less are equals.


def speed_class(tokens_per_s: float, busy: int) -> int:
    """Of what one more request would get of a node that answers so many already; higher is faster. 0: not
    known."""
    share = tokens_per_s / (busy + 1)
    steps, at_least = 0, 0.01  # A token in a hundred seconds is as slow as it gets.
    while share > at_least:
        at_least *= _STEP
        steps += 1
    return steps
