"""One file on its way to a worker's folder of models, by links that are counted, and moments at which one of
those who take part is killed."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from remuda.core.entropy import SeededEntropy
from tests.support.trickle import Relay

MB = 1_000_000
FILE = "kept.bin"
BUFFER = 64 << 10  # What a killed giver has sent, and nobody has read, is not lost: it should be little.
LOOK_S = 0.02


@dataclass
class Receiving:
    """`models` is where the file is to be, `links` lead to those that have it."""

    models: Path
    links: dict[str, Relay]
    kills: Counter[str] = field(default_factory=Counter, kw_only=True)
    seen_sizes: set[int] = field(default_factory=set, kw_only=True)

    @property
    def fetched(self) -> int:
        return sum(link.bytes_back for link in self.links.values())

    @property
    def arrived(self) -> int:
        """How much of it is here, and not yet to be seen."""
        found = (self.models.parent / "model-downloads" / "partial").glob("*")
        return max((path.stat().st_size for path in found), default=0)

    def throttle(self, bytes_per_s: float) -> None:
        for link in self.links.values():
            link.bytes_per_s = bytes_per_s

    async def watch(self) -> None:
        """Whatever a backend could find at any moment."""
        while True:
            with suppress(FileNotFoundError):
                self.seen_sizes.add((self.models / FILE).stat().st_size)
            await anyio.sleep(LOOK_S)


def moments(whom: Sequence[str], size: int, count: int) -> list[tuple[str, int]]:
    """Who is killed, and once how many bytes were sent: each as often, in any order."""
    chance = SeededEntropy(42)
    order = sorted((whom[number % len(whom)] for number in range(count)), key=lambda _: chance.fraction())
    goals = [int(size * (number + chance.fraction()) / (count + 1)) for number in range(count)]
    return list(zip(order, goals, strict=True))
