"""The model galleries of a frontend, for callers that cannot wait: what they offer, and what one of their
entries amounts to."""

from collections.abc import Sequence
from typing import Final

from anyio import to_thread

from remuda.core.errors import NotFound, PeerFailed, RemudaError
from remuda.core.hints import pasted
from remuda.gallery.fetch import Fetched, Fetcher, shown
from remuda.gallery.model import Reading
from remuda.gallery.model_configs import NO_BASE, BaseConfig, ComposedModel, compose, read_base
from remuda.gallery.model_entries import FoundModel, ModelEntry, find, similar
from remuda.gallery.sources import REMUDA_MODELS, GalleryView, shipped_models

_BASES_MAX: Final = 200  # Held in memory.


class ModelGalleries:
    def __init__(self, view: GalleryView[ModelEntry], fetcher: Fetcher, *, shipped_first: bool) -> None:
        """`shipped_first`: what ships with Remuda counts before all other galleries."""
        self._view = view
        self._fetcher = fetcher
        self._shipped = [Reading(REMUDA_MODELS, shipped_models())] if shipped_first else []
        self._bases: dict[str, BaseConfig] = {}

    async def readings(self) -> Sequence[Reading[ModelEntry]]:
        """Of all galleries, as far as they could be read in a few seconds."""
        return await self._view.readings()

    async def readings_for(self, name: str) -> Sequence[Reading[ModelEntry]]:
        """The same for one who looks for this name: no gallery is waited for that does not matter."""
        return self._shipped if find(self._shipped, name) else await self.readings()

    async def find(self, name: str) -> FoundModel:
        """NotFound, with what may have been meant."""
        readings = await self.readings_for(name)
        if found := find(readings, name):
            return found
        near = similar(readings, name)
        unread = [one.gallery.name for one in readings if one.trouble]
        also = f" (galleries that could not be read: {', '.join(unread)})" if unread else ""
        hint = f"did you mean {' or '.join(near)}?" if near else f"remuda models search {pasted(name)}"
        raise NotFound(f"no gallery has a model {name!r}{also}", hint=hint)

    async def composed(self, found: FoundModel, name: str = "") -> ComposedModel:
        """Its configuration and files. Raises PeerFailed when its base configuration cannot be had."""
        base = await self._base(found) if found.entry.url else NO_BASE
        return await to_thread.run_sync(compose, found.entry, base, name)

    async def _base(self, found: FoundModel) -> BaseConfig:
        address = found.entry.url
        if address not in self._bases:
            # Named by a gallery and not by an admin: it leads no further inwards than the gallery itself.
            answer = await self._fetcher.fetch(address, named_by=found.gallery.url)
            assert isinstance(answer, Fetched), "nothing was known, so something was sent"
            try:
                base = await to_thread.run_sync(read_base, answer.content)
            except RemudaError as error:
                raise PeerFailed(f"{shown(address)} is no base configuration: {error}") from None
            while len(self._bases) >= _BASES_MAX:
                del self._bases[next(iter(self._bases))]
            self._bases[address] = base
        return self._bases[address]
