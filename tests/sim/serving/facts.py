"""What is so of nodes and models, and was so a moment ago: whoever reads it acts on it a little later."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.support.clocks import elapsed_s

T = TypeVar("T")
ADMIN = "ada"


class Fact(Generic[T]):
    def __init__(self, value: T) -> None:
        self._since: list[tuple[float, T]] = [(-math.inf, value)]

    @property
    def now(self) -> T:
        return self._since[-1][1]

    def becomes(self, value: T) -> None:
        if value != self.now:
            self._since.append((elapsed_s(), value))

    def lately(self, seconds: float) -> list[T]:
        """What was so at any moment of the last seconds, the present included."""
        ends_s = [since_s for since_s, _ in self._since[1:]] + [math.inf]
        begin_s = elapsed_s() - seconds
        return [value for (_, value), end_s in zip(self._since, ends_s, strict=True) if end_s > begin_s]


@dataclass(frozen=True, slots=True)
class Terms:
    """On which a node takes part."""

    member: bool = True
    drained: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    vram_bytes: int = 0  # That replicas may use.

    @property
    def takes_work(self) -> bool:
        return self.member and not self.drained

    def suit(self, selector: Mapping[str, str]) -> bool:
        return selector.items() <= self.labels.items()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model as it is configured."""

    revision: str
    selector: Mapping[str, str]
    least: int = 0  # Replicas that are always to be loaded.
    pinned: bool = False
    most: int = 0  # Replicas that it may have; 0: any number.
