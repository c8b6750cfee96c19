"""From one source to a tree of files in a staging folder: layers are unpacked while others still arrive;
and how far an install is: every byte counts when it arrives and again when it is unpacked.
"""

import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from anyio.from_thread import check_cancelled
from anyio.from_thread import run_sync as in_event_loop
from anyio.to_thread import run_sync

from remuda.core.errors import Invalid
from remuda.oci.blobs import BlobStore
from remuda.oci.client import RegistryClient
from remuda.oci.disk import GrowingFile, StartedOver, disk_trouble_explained, require_headroom
from remuda.oci.fetch import FileProgress, ImageFetch, PullPhase, fetch_image
from remuda.oci.model import Descriptor, Image, Platform
from remuda.oci.reference import Archive, Folder, OciFile, OciImage
from remuda.oci.sources import fetch_archive, import_image
from remuda.oci.unpack import ArchiveRefused, DirectoryTree, LayerSource, UnpackLimits, unpack_layer

_ORDER = (PullPhase.RESOLVING, PullPhase.DOWNLOADING, PullPhase.EXTRACTING)


@dataclass(frozen=True, slots=True)
class ProgressStep:
    """One thing that was noticed, and how far everything is with it."""

    phase: PullPhase
    percentage: float
    file: FileProgress | None = None


OnStep = Callable[[ProgressStep], None]


def ignore_steps(step: ProgressStep) -> None:
    """For callers without progress."""


class InstallTracker:
    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._phase = PullPhase.RESOLVING
        self._percentage = 0.0
        self._totals: dict[str, int] = {}
        self._done: dict[tuple[str, PullPhase], int] = {}

    def begin(self) -> None:
        """At a source: what an earlier one brought no longer counts."""
        self._totals.clear()
        self._done.clear()
        self._on_step(ProgressStep(self._phase, self._percentage))

    def expect(self, layers: Iterable[Descriptor]) -> None:
        """All there is to fetch, so that percentages are of the whole from the first byte on."""
        self._totals = {layer.digest: layer.size for layer in layers}
        for digest, size in self._totals.items():
            self._on_step(ProgressStep(self._phase, self._percentage, FileProgress(digest, 0, size)))

    def observe(self, event: FileProgress) -> None:
        self._totals.setdefault(event.file, event.total_bytes)
        self._totals[event.file] = max(self._totals[event.file], event.done_bytes)
        self._done[event.file, event.phase] = event.done_bytes
        self._phase = max(self._phase, self._current(), key=_ORDER.index)
        whole = 2 * sum(self._totals.values())
        share = 100.0 * sum(self._done.values()) / whole if whole else 0.0
        self._percentage = max(self._percentage, min(share, 100.0))
        self._on_step(ProgressStep(self._phase, self._percentage, event))

    def arrive(self) -> None:
        self._phase, self._percentage = PullPhase.EXTRACTING, 100.0
        self._on_step(ProgressStep(self._phase, self._percentage))

    def _current(self) -> PullPhase:
        fetched = (
            self._done.get((file, PullPhase.DOWNLOADING), -1) >= size for file, size in self._totals.items()
        )
        return PullPhase.EXTRACTING if all(fetched) else PullPhase.DOWNLOADING


log = structlog.get_logger()

LayerAt = Callable[[int], Awaitable[Path | GrowingFile]]
"""From a layer's number to something that can be unpacked."""

_TOLD_EVERY_BYTES = 1 << 20
_PACKED_GROWTH = 2  # How much larger a compressed layer may be expected to become; none says it beforehand.


class SourceUnpacker:
    """Fetches and unpacks for one platform, into folders its callers own."""

    def __init__(
        self, client: RegistryClient, store: BlobStore, platform: Platform, limits: UnpackLimits | None = None
    ) -> None:
        self._client = client
        self._store = store
        self._platform = platform
        self._limits = limits or UnpackLimits()

    async def look_up(
        self, source: OciImage | OciFile | Archive, digest: str, sha256: str, tracker: InstallTracker
    ) -> Image:
        """What the source holds now. Of what is no registry's this fetches everything."""
        match source:
            case OciImage(reference):
                wanted = reference.pinned(digest) if digest else reference
                image = await self._client.image(wanted, self._platform)
                tracker.expect(image.layers)
                return image
            case OciFile(path):
                return await import_image(self._client, path, self._platform, self._store, tracker.observe)
            case Archive():
                return await fetch_archive(self._client, source, sha256, self._store, tracker.observe)

    async def require_room(self, image: Image, backends: Path) -> None:
        """DiskFull, with the numbers, unless what is missing and what it unpacks to fit."""
        await run_sync(self._require_room, image, backends)

    async def unpack(self, image: Image, stage: Callable[[], Path], tracker: InstallTracker) -> None:
        """The image's files in the folder that `stage` made last; its layers stay in the store.

        Layers are unpacked as they arrive. Bytes that turn out not to be those promised are thrown away with
        the folder, and what is verified by then is unpacked into a new one.
        """
        async with fetch_image(self._client, image, self._store, tracker.observe) as fetched:
            try:
                await self._unpack(fetched, fetched.arriving, await run_sync(stage), tracker)
                await fetched.layers()
            except (StartedOver, ArchiveRefused) as trouble:
                await fetched.layers()
                log.info("unpacking_restarted", image=image.name, reason=str(trouble))
                await self._unpack(fetched, fetched.layer, await run_sync(stage), tracker)

    async def _unpack(
        self, fetched: ImageFetch, layer_at: LayerAt, staging: Path, tracker: InstallTracker
    ) -> None:
        with DirectoryTree(staging) as tree:
            for number, layer in enumerate(fetched.image.layers):
                source = await layer_at(number)
                try:
                    await run_sync(self._unpack_layer, source, layer, tree, tracker)
                finally:
                    if isinstance(source, GrowingFile):
                        source.close()
            await run_sync(_finish, tree)

    async def copy(self, folder: Folder, staging: Path, tracker: InstallTracker) -> None:
        await run_sync(_copy_folder, folder.path, staging, tracker)

    def _require_room(self, image: Image, backends: Path) -> None:
        layers = set(image.layers)
        missing = sum(self._store.missing_bytes(layer.digest, layer.size) for layer in layers)
        unpacked = sum(_unpacked_estimate(layer) for layer in image.layers)
        for folder in (backends, self._store.root):
            folder.mkdir(parents=True, exist_ok=True)
        shared = backends.stat().st_dev == self._store.root.stat().st_dev
        require_headroom(backends, unpacked + (missing if shared else 0), f"{image.name}, unpacked,")

    def _unpack_layer(
        self, source: LayerSource, layer: Descriptor, tree: DirectoryTree, tracker: InstallTracker
    ) -> None:
        reported = _Told(layer.digest, layer.size, tracker)
        unpack_layer(source, tree, self._limits, reported.more, _cancelled)
        reported.tell()


class _Told:
    """Bytes that were unpacked, passed on from a thread: often enough to be seen, and no more."""

    def __init__(self, file: str, total: int, tracker: InstallTracker) -> None:
        self._file = file
        self._total = total
        self._tracker = tracker
        self._done = 0
        self._told = 0

    def more(self, count: int) -> None:
        self._done += count
        if self._done - self._told >= _TOLD_EVERY_BYTES:
            self.tell()

    def tell(self) -> None:
        self._told = self._done
        event = FileProgress(self._file, self._done, self._total, PullPhase.EXTRACTING)
        in_event_loop(self._tracker.observe, event)


def _unpacked_estimate(layer: Descriptor) -> int:
    return layer.size if layer.media_type.endswith("tar") else _PACKED_GROWTH * layer.size


def _cancelled() -> bool:
    check_cancelled()
    return False


def _finish(tree: DirectoryTree) -> None:
    tree.finish(check_cancelled)


def _copy_folder(source: Path, staging: Path, tracker: InstallTracker) -> None:
    """A copy: installed backends change their own files, and the source is not theirs."""
    if staging.resolve().is_relative_to(source.resolve()):
        raise Invalid(f"{source} holds the folder of backends itself", hint="name the backend's own folder")
    size = sum(path.lstat().st_size for path in source.rglob("*") if path.is_file() and not path.is_symlink())
    require_headroom(staging, size, str(source))
    reported = _Told(str(source), size, tracker)
    in_event_loop(tracker.observe, FileProgress(str(source), size, size))  # There is nothing to fetch.
    with disk_trouble_explained(str(source), staging, size):
        shutil.copytree(
            source,
            staging,
            symlinks=True,
            dirs_exist_ok=True,
            copy_function=partial(_copy_file, reported.more),
        )
    reported.tell()


def _copy_file(more: Callable[[int], None], source: str, target: str) -> None:
    check_cancelled()
    status = os.lstat(source)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        raise Invalid(f"{source} is neither a file, a folder nor a link")
    shutil.copy2(source, target, follow_symlinks=False)
    more(status.st_size)
