"""What a tag stands for now, so that all nodes and all retries get the same bytes. Data only."""

from dataclasses import dataclass
from typing import Protocol

from remuda.gallery.references import registry


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
    refused: bool = False  # The registry answered, and `trouble` is what its answer means.

    def unasked(self, uri: str) -> str:
        """Why it is not known what the image stands for now, as the beginning of a sentence; empty: it is."""
        if self.refused or not self.trouble:
            return self.trouble
        return f"{registry(uri)} could not be asked what {uri} stands for now ({self.trouble})"


class Pinner(Protocol):
    async def pin(self, build: Build) -> Pin:
        """What the registry says. Neither raises nor insists: what cannot be had now stays empty."""
        ...
