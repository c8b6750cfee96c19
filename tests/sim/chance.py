"""Everything that is left to chance, from one seed."""

import zlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

from remuda.core.entropy import SeededEntropy

T = TypeVar("T")


class Dice(SeededEntropy):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._seed = seed

    def fork(self, label: str) -> "Dice":
        """Dice of somebody's own: what they throw does not depend on how often others do."""
        return Dice(zlib.crc32(f"{self._seed}/{label}".encode()))

    def chance(self, probability: float) -> bool:
        return self.fraction() < probability

    def between(self, least: float, most: float) -> float:
        return least + (most - least) * self.fraction()

    def whole(self, least: int, most: int) -> int:
        """Both ends included."""
        return least + int(self.fraction() * (most - least + 1))

    def pick(self, among: Sequence[T]) -> T:
        return among[int(self.fraction() * len(among))]

    def weighted(self, weights: Mapping[T, float]) -> T:
        point = self.fraction() * sum(weights.values())
        for choice, weight in weights.items():
            point -= weight
            if point < 0:
                return choice
        return choice
