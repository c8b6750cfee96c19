"""Builds the model galleries of a frontend."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from remuda.assembly.running import background
from remuda.assembly.settings import FrontendSettings
from remuda.assembly.sources import model_galleries_of
from remuda.core.clock import Clock
from remuda.gallery.fetch import open_fetcher
from remuda.gallery.model import Gallery
from remuda.gallery.model_galleries import ModelGalleries
from remuda.gallery.sources import REMUDA_MODELS, Cache, FailureLog, GalleryView, ModelSources
from remuda.host.folder import DataFolder


@asynccontextmanager
async def open_model_galleries(
    settings: FrontendSettings, folder: DataFolder, clock: Clock
) -> AsyncIterator[ModelGalleries]:
    """They are read at the first request."""
    configured = model_galleries_of(settings)
    cache, failures = Cache(folder.root / "galleries"), FailureLog()
    async with open_fetcher() as fetcher:

        def opened(galleries: tuple[Gallery, ...]) -> ModelSources:
            return ModelSources(galleries, fetcher=fetcher, cache=cache, clock=clock, failures=failures)

        view = GalleryView(opened(configured), opened)
        async with background(view.run):
            yield ModelGalleries(view, fetcher, shipped_first=configured[:1] == (REMUDA_MODELS,))
