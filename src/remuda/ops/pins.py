"""What a tag stands for now, so that all nodes and all retries get the same bytes. Data only."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Build:
    """An image, and the platform of a machine that is to have it."""

    uri: str
    platform: str = ""  # Such as linux/arm64; empty: not known.


@dataclass(frozen=True, slots=True)
class Pin:
    digest: str = ""  # Of the image index; empty: it could not be had.
    missing: str = ""  # Why no machine of that platform can have it.
    trouble: str = ""  # Why nobody could say.


class Pinner(Protocol):
    async def pin(self, build: Build) -> Pin:
        """What the registry says. Neither raises nor insists: what cannot be had now stays empty."""
        ...
