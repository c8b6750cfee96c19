"""Builds operations on a frontend: who stores them, carries them out, and answers for them."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio
import structlog

from remuda.assembly.running import background
from remuda.assembly.settings import FrontendSettings
from remuda.assembly.sources import galleries_of, registries_of
from remuda.bus.client import Bus
from remuda.bus.messages import Connected
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import Forbidden, Invalid, NotFound, RemudaError, Unauthorized
from remuda.core.ids import FrontendId
from remuda.fleet.health import Standing
from remuda.gallery.fetch import open_fetcher
from remuda.gallery.model import Gallery
from remuda.gallery.sources import Cache, FailureLog, GalleryView, Sources
from remuda.gateway.services import Ops
from remuda.host.folder import DataFolder
from remuda.oci.auth import Keychain, docker_config_files
from remuda.oci.client import RegistryClient, open_client
from remuda.oci.errors import PlatformMissing
from remuda.oci.model import Platform
from remuda.oci.reference import OciImage, Reference, parse_source
from remuda.oci.transport import RetryPolicy
from remuda.ops.broadcast import ChangeSignal
from remuda.ops.commander import BusCommander, Timeouts
from remuda.ops.feed import Feed
from remuda.ops.inventories import Inventories
from remuda.ops.model import StepPolicy
from remuda.ops.ports import Build, Figures, FrontendWork, ModelWork, Pin, Pinner
from remuda.ops.progress_board import ProgressBoard, ProgressSubscription
from remuda.ops.reconciler import Reconciler
from remuda.ops.service import Operations, Policy
from remuda.ops.upgrade_check import UpgradeCheck
from remuda.store.database import Database
from remuda.store.ops import SqlOpStore

log = structlog.get_logger(__name__)

_ASK_S: Final = 4.0


class RegistryPinner:
    """Implements ops.ports.Pinner."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client

    async def pin(self, build: Build) -> Pin:
        reference = _image(build.uri)
        if reference is None:
            return Pin()
        try:
            with anyio.fail_after(_ASK_S):
                return await self._asked(reference, build.platform)
        except PlatformMissing as error:
            return Pin(missing=error.message)
        except NotFound:
            return Pin(trouble=f"{reference} does not exist in the registry", refused=True)
        except (Unauthorized, Forbidden):
            words = f"access to {reference} was denied: the image is private or does not exist"
            return Pin(trouble=words, refused=True)
        except (RemudaError, TimeoutError) as error:
            trouble = f"no answer within {_ASK_S:g} s" if isinstance(error, TimeoutError) else error.message
            log.info("tag_not_pinned", image=str(reference), reason=trouble)
            return Pin(trouble=trouble)

    async def _asked(self, reference: Reference, platform: str) -> Pin:
        if not platform:
            return Pin(await self._client.digest_of(reference))
        os, _, architecture = platform.partition("/")
        image = await self._client.image(reference, Platform(os, architecture))
        sizes = {layer.digest: layer.size for layer in image.layers}
        return Pin(image.digest, size_bytes=sum(sizes.values()))


def _image(uri: str) -> Reference | None:
    try:
        source = parse_source(uri)
    except Invalid:
        return None
    return source.reference if isinstance(source, OciImage) else None


_REQUESTS_MAX = 1000  # Open at once, over all operations.
_MODELS_AT_ONCE_MAX = 3  # Installed or removed by this frontend.
_ONCE = RetryPolicy(attempts_max=1)  # An admin waits for the answer, and can do without it.


@dataclass(frozen=True, slots=True)
class FrontendParts:
    """What a frontend has before it has operations."""

    settings: FrontendSettings
    folder: DataFolder
    database: Database
    bus: Bus
    ticks: Bus  # A second connection, so that no reply waits behind progress.
    frontend: FrontendId
    signal: ChangeSignal
    standings: Callable[[], Awaitable[Sequence[Standing]]]
    clock: Clock
    entropy: Entropy
    figures: Figures

    @property
    def timeouts(self) -> Timeouts:
        settings = self.settings
        return Timeouts(settings.nats_backend_install_timeout, settings.nats_backend_upgrade_timeout)

    def bus_trouble(self) -> str:
        return "" if isinstance(self.bus.state, Connected) else "the bus is down"


@dataclass(frozen=True, slots=True)
class Workshop:
    """What the loading of models needs of operations."""

    store: SqlOpStore
    operations: Operations
    board: ProgressBoard


MakeModelWork = Callable[[Workshop], ModelWork]
MakeFrontendWork = Callable[[Workshop], FrontendWork]


@asynccontextmanager
async def open_ops(
    parts: FrontendParts, make_model_work: MakeModelWork, make_frontend_work: MakeFrontendWork
) -> AsyncIterator[Ops]:
    """Operations are moved on for as long as the block lasts."""
    settings, clock, entropy = parts.settings, parts.clock, parts.entropy
    keys = Keychain(docker_config_files(os.environ), os.environ)
    cache = Cache(parts.folder.root / "galleries")
    failures = FailureLog()
    async with (
        open_client(clock, entropy, registries=registries_of(settings), keys=keys, retry=_ONCE) as client,
        open_fetcher() as own_fetcher,
        open_fetcher(file_roots=()) as request_fetcher,  # A request must not read our files.
    ):

        def asked_for(galleries: tuple[Gallery, ...]) -> Sources:
            return Sources(galleries, fetcher=request_fetcher, cache=cache, clock=clock, failures=failures)

        own = Sources(
            galleries_of(settings), fetcher=own_fetcher, cache=cache, clock=clock, failures=failures
        )
        galleries, pinner = GalleryView(own, asked_for), RegistryPinner(client)
        async with _at_work(parts, galleries, pinner, make_model_work, make_frontend_work) as ops:
            yield ops


def _commander(
    parts: FrontendParts,
    shop: Workshop,
    progress: ProgressSubscription,
    model_work: ModelWork,
    frontend_work: FrontendWork,
) -> BusCommander:
    return BusCommander(
        parts.bus,
        shop.store,
        shop.board,
        progress,
        parts.clock,
        timeouts=parts.timeouts,
        at_once_max=_REQUESTS_MAX,
        bus_trouble=parts.bus_trouble,
        signal=parts.signal,
        model_work=model_work,
        frontend_work=frontend_work,
        own_at_once_max=_MODELS_AT_ONCE_MAX,
    )


@asynccontextmanager
async def _at_work(
    parts: FrontendParts,
    galleries: GalleryView,
    pinner: Pinner,
    make_model_work: MakeModelWork,
    make_frontend_work: MakeFrontendWork,
) -> AsyncIterator[Ops]:
    store, clock, bus, signal = SqlOpStore(parts.database), parts.clock, parts.bus, parts.signal
    board = ProgressBoard(store, clock)
    progress = ProgressSubscription(parts.ticks, board.take)
    inventories = Inventories(bus, store, clock, signal)
    operations = Operations(
        store,
        parts.standings,
        galleries,
        pinner,
        inventories,
        board,
        clock=clock,
        entropy=parts.entropy,
        policy=Policy(at_once=parts.settings.nodes_at_once, local_sources=parts.settings.allow_local_sources),
        signal=signal,
        figures=parts.figures,
    )
    shop = Workshop(store, operations, board)
    commander = _commander(parts, shop, progress, make_model_work(shop), make_frontend_work(shop))
    reconciler = Reconciler(
        store,
        parts.standings,
        commander,
        inventories,
        signal,
        frontend=parts.frontend,
        clock=clock,
        entropy=parts.entropy,
        timeouts=parts.timeouts,
        policy=StepPolicy(),
        bus_trouble=parts.bus_trouble,
        figures=parts.figures,
    )
    feed = Feed(store, signal, board, progress, clock)
    upgrades = UpgradeCheck(
        operations.look,
        pinner,
        clock,
        bad_versions=operations.bad_versions,
        bus=bus,
        frontend=parts.frontend,
    )
    runners = (signal.run, board.run, inventories.run, commander.run, reconciler.run)
    async with background(*runners, galleries.run, feed.run, upgrades.run):
        yield Ops(operations, feed, upgrades)
