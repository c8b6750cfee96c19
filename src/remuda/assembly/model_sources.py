"""Builds where a frontend has models from: galleries, what their configurations name, and the files that it
keeps in object storage."""

import hashlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from remuda.assembly.operations import FrontendParts, Workshop
from remuda.assembly.running import background
from remuda.assembly.settings import FrontendSettings
from remuda.assembly.sources import model_galleries_of, storage_account
from remuda.core.clock import Clock
from remuda.fleet.identity import NodeTokens
from remuda.gallery.fetch import open_fetcher
from remuda.gallery.model import Gallery
from remuda.gallery.model_galleries import ModelGalleries
from remuda.gallery.sources import REMUDA_MODELS, Cache, FailureLog, GalleryView, ModelSources
from remuda.host.folder import DataFolder
from remuda.model_installs.service import HoldingFrontend
from remuda.model_installs.wanted_files import WantedFiles
from remuda.models.file_hashes import FileHashes
from remuda.s3 import limits
from remuda.s3.model_store import ModelObjects, StoreNotes
from remuda.s3.requests import SignedRequests
from remuda.scheduler.catalogue import ModelCatalogue
from remuda.store.replicas import SqlModelStore


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


def model_objects(
    parts: FrontendParts, tokens: NodeTokens, models_path: Path, models: SqlModelStore, hashes: FileHashes
) -> ModelObjects | None:
    """None: no object storage is configured."""
    settings = parts.settings
    account = storage_account(settings)
    if account is None:
        return None
    silence = settings.file_transfer_timeout or timedelta(seconds=limits.SILENCE_S)
    fleet = hashlib.sha256(tokens.model_files.encode()).hexdigest()[:32]
    return ModelObjects(
        SignedRequests(account, parts.clock.now, silence.total_seconds()),
        StoreNotes(parts.folder.root / "stored-models.json", fleet),
        models.models,
        models_path,
        hashes,
        frontend=parts.frontend,
        clock=parts.clock,
        tries_max=max(settings.file_transfer_retries or limits.ATTEMPTS_MAX, 1),
    )


def holder_of(parts: FrontendParts) -> HoldingFrontend:
    return HoldingFrontend(parts.frontend, socket.gethostname())


def wanted_files(
    parts: FrontendParts, shop: Workshop, catalogue: ModelCatalogue, *, shared: bool
) -> WantedFiles:
    return WantedFiles(
        shop.store,
        catalogue,
        clock=parts.clock,
        signal=parts.signal,
        holder=holder_of(parts),
        local_sources=parts.settings.allow_local_sources,
        shared=shared,
        figures=parts.figures,
        refresh=catalogue.refresh,
    )
