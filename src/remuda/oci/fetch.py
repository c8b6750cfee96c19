"""Bytes from a server onto the disk, once: in parallel, resumed where they broke off, and checked; and
how far that has come: overall percentage, rate and time left, from bytes that were measured.

Cancelling at any point keeps what was written, and the next fetch goes on from there. Whatever order
progress events come in, and also when a file starts over, the percentage neither falls nor passes 100.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.entropy import Entropy
from remuda.core.errors import NotFound, RemudaError
from remuda.core.events import Notifier
from remuda.oci import limits
from remuda.oci.blobs import BlobStore, OnBytes, WantedBlob, digest_of
from remuda.oci.client import RegistryClient
from remuda.oci.disk import GrowingFile, Partial, appending, require_headroom
from remuda.oci.errors import ContentRefused, RegistryFailed
from remuda.oci.model import Descriptor, Image
from remuda.oci.transport import BodyStream, RetryBudget, RetryPolicy

log = structlog.get_logger(__name__)

_WINDOW_S = 10.0
_SAMPLES_MAX = 200


class PullPhase(StrEnum):
    """Words of the install protocol."""

    RESOLVING = "resolving"
    DOWNLOADING = "downloading"
    EXTRACTING = "extracting"


@dataclass(frozen=True, slots=True)
class FileProgress:
    """One file's state. `file` is the digest of a layer, or the name of an archive."""

    file: str
    done_bytes: int
    total_bytes: int
    phase: PullPhase = PullPhase.DOWNLOADING


OnProgress = Callable[[FileProgress], None]


def ignore_progress(event: FileProgress) -> None:
    """For callers that show no progress."""


@dataclass(frozen=True, slots=True)
class Overall:
    done_bytes: int
    total_bytes: int
    percentage: float
    rate_bytes_s: float
    """Of bytes that travelled; what was on the disk already does not make a connection faster."""
    left: timedelta | None
    """None while nothing moves."""


class Meter:
    """Sums what was downloaded of several files. Unknown files are ignored."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        self._totals = dict(totals)
        self._done: dict[str, int] = {}
        self._travelled = 0
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES_MAX)
        self._most_done = 0

    def observe(self, event: FileProgress, at: float) -> Overall:
        """The state after this event; `at` is in seconds of a clock that never goes back."""
        total = self._totals.get(event.file)
        if total is not None and event.phase is PullPhase.DOWNLOADING:
            done = min(max(event.done_bytes, 0), total)
            # The first word of a file says where it was resumed; only what follows was measured.
            self._travelled += max(done - self._done.get(event.file, done), 0)
            self._done[event.file] = done
        self._sample(at)
        return self.overall(at)

    def overall(self, at: float) -> Overall:
        total = sum(self._totals.values())
        self._most_done = done = max(self._most_done, sum(self._done.values()))
        percentage = 100.0 * done / total if total else 100.0
        rate = self._rate(at)
        left = timedelta(seconds=min((total - done) / rate, 1e8)) if rate > 0 else None
        return Overall(done, total, percentage, rate, left)

    def _sample(self, at: float) -> None:
        newest = self._samples[-1][0] if self._samples else None
        if newest is None or at - newest >= _WINDOW_S / _SAMPLES_MAX:
            self._samples.append((at, self._travelled))
        while len(self._samples) > 1 and self._samples[1][0] <= at - _WINDOW_S:
            self._samples.popleft()

    def _rate(self, at: float) -> float:
        if not self._samples:
            return 0.0
        since, travelled = self._samples[0]
        span = at - since
        return (self._travelled - travelled) / span if span > 0 else 0.0


Open = Callable[[int, int, Set[str]], AbstractAsyncContextManager[BodyStream]]
"""Bytes from an offset on, at the given turn of trying, without asking these mirrors."""


def _ignore_partial(partial: Partial) -> None:
    """For callers who wait for the whole."""


class ImageFetch:
    """The layers of one image, of which some may still be on their way."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self._paths: dict[str, Path] = {}
        self._partials: dict[str, Partial] = {}
        self._failure: RemudaError | None = None
        self._changes = Notifier()

    async def layer(self, number: int) -> Path:
        """The file of layer `number`, counted from 0, as soon as it is complete and verified.

        Raises what made the fetch fail, whichever layer it was.
        """
        digest = self.image.layers[number].digest
        while digest not in self._paths:
            if self._failure is not None:
                raise self._failure
            await self._changes.changed.wait()
        return self._paths[digest]

    async def arriving(self, number: int) -> Path | GrowingFile:
        """The same, as soon as it can be read from its start. The caller closes a file that still grows."""
        digest = self.image.layers[number].digest
        while digest not in self._paths and digest not in self._partials and self._failure is None:
            await self._changes.changed.wait()
        partial = self._partials.get(digest)
        if digest not in self._paths and partial is not None:
            try:
                return partial.opened()
            except FileNotFoundError:
                pass  # It has just become whole.
        return await self.layer(number)

    async def layers(self) -> list[Path]:
        """All of them, bottom first."""
        return [await self.layer(number) for number in range(len(self.image.layers))]

    def _began(self, digest: str, partial: Partial) -> None:
        self._partials[digest] = partial
        self._tell()

    def _completed(self, digest: str, path: Path) -> None:
        self._paths[digest] = path
        self._tell()

    def _failed(self, failure: RemudaError) -> None:
        self._failure = self._failure or failure
        self._tell()

    def _tell(self) -> None:
        self._changes.notify()


@asynccontextmanager
async def fetch_image(
    client: RegistryClient, image: Image, store: BlobStore, on_progress: OnProgress = ignore_progress
) -> AsyncIterator[ImageFetch]:
    """Fetch an image's layers while the block runs; the block takes them as they complete.

    Layers that have been handed out stay on the disk until the block ends; what is unfinished then is
    cancelled. DiskFull, before the first byte, when what is missing does not fit.
    """
    fetched = ImageFetch(image)
    failure: Exception | None = None
    await run_sync(_check_room, image, store)
    with ExitStack() as holds:
        async with anyio.create_task_group() as tasks:
            slots = anyio.CapacityLimiter(limits.LAYERS_AT_ONCE_MAX)
            for layer in dict.fromkeys(image.layers):
                tasks.start_soon(_bring, client, fetched, layer, store, slots, holds, on_progress)
            try:
                yield fetched
            except Exception as error:  # Passed on below: a task group would wrap it.
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _bring(
    client: RegistryClient,
    fetched: ImageFetch,
    layer: Descriptor,
    store: BlobStore,
    slots: anyio.CapacityLimiter,
    holds: ExitStack,
    on_progress: OnProgress,
) -> None:
    image = fetched.image

    def on_bytes(done: int) -> None:
        on_progress(FileProgress(layer.digest, done, layer.size))

    def opened(offset: int, turn: int, avoid: Set[str]) -> AbstractAsyncContextManager[BodyStream]:
        if image.reference is None:
            raise NotFound(f"layer {layer.digest} of {image.name} is no longer on this machine")
        return client.open_blob(image.reference, layer, offset, turn, avoid)

    def began(partial: Partial) -> None:
        fetched._began(layer.digest, partial)

    wanted = WantedBlob(f"layer {layer.digest} of {image.name}", layer.digest, layer.digest, layer.size)
    try:
        async with slots:
            path = None
            while path is None:  # Once more if it was swept between arriving and being held.
                await fetch_blob(opened, wanted, store, client.retry, client.entropy, on_bytes, began)
                path = holds.enter_context(store.held(layer.digest))
    except RemudaError as error:
        fetched._failed(error)
    else:
        fetched._completed(layer.digest, path)


async def fetch_blob(
    opened: Open,
    wanted: WantedBlob,
    store: BlobStore,
    retry: RetryPolicy,
    entropy: Entropy,
    on_bytes: OnBytes,
    on_claimed: Callable[[Partial], None] = _ignore_partial,
) -> str:
    """Have the blob in the store, and return its digest. ContentRefused when it is not as promised.

    `on_claimed` hears of the partial that it will be, where no other process fetches it.
    """
    async with store.claim(wanted, on_bytes) as claimed:
        if isinstance(claimed, Path):
            on_bytes(wanted.size if wanted.size is not None else claimed.stat().st_size)
            return digest_of(claimed)
        on_claimed(claimed)
        download = _Download(opened, wanted, claimed, RetryBudget(retry, entropy, wanted.name), on_bytes)
        await download.run()
        await run_sync(store.link_key, wanted, claimed.digest)
        await run_sync(store.commit, claimed, claimed.digest)
        return claimed.digest


@dataclass(slots=True)
class _Download:
    """One claimed partial on its way to being whole."""

    opened: Open
    wanted: WantedBlob
    partial: Partial
    retries: RetryBudget
    on_bytes: OnBytes
    most: int = 0
    """The furthest any attempt came: only more than that is getting ahead."""
    suppliers: set[str] = field(default_factory=set)
    """Mirrors that sent some of what the partial holds."""
    avoid: set[str] = field(default_factory=set)
    """Mirrors that sent, or offered, something else than was wanted."""

    async def run(self) -> None:
        if self.wanted.digest is not None or self.wanted.one_version:
            await run_sync(self.partial.reread)
        else:  # Without a digest nothing says that those were the same bytes.
            await run_sync(self.partial.restart)
        resumed = self.partial.size > 0  # By an earlier life: a power cut or a bad disk may have damaged it.
        while fault := await self._fault():
            if not resumed and not self.suppliers:
                await run_sync(self.partial.discard)
                raise fault
            await run_sync(self.partial.restart)
            log.warning(
                "download_restarted",
                what=self.wanted.name,
                reason=fault.message,
                mirrors=sorted(self.suppliers),
                resumed=resumed,
            )
            self.avoid |= self.suppliers
            self.suppliers, resumed = set(), False

    async def _fault(self) -> ContentRefused | None:
        """What is wrong with all that arrived, whichever mirror sent it; None when it is as promised."""
        try:
            await self._complete()
        except ContentRefused as refused:
            return refused
        if await run_sync(self._as_promised):  # The last bytes may still be hashed.
            return None
        return ContentRefused(
            f"{self.wanted.name} arrived with digest {self.partial.digest} and {self.partial.size} bytes; "
            f"it was promised with {self.wanted.digest} and {self.wanted.size}",
            hint="the server or something in between is broken; nothing of it was kept",
        )

    def _as_promised(self) -> bool:
        return self.wanted.digest in (None, self.partial.digest) and self.wanted.size in (
            None,
            self.partial.size,
        )

    async def _complete(self) -> None:
        """Read until the end, however often the connection breaks."""
        self.on_bytes(self.partial.size)
        self.most = self.partial.size
        turn = 0
        while self.wanted.size is None or self.partial.size < self.wanted.size:
            try:
                async with self.opened(self.partial.size, turn, self.avoid) as stream:
                    if await self._read(stream):
                        return
                    raise RegistryFailed(f"{self.wanted.name} broke off after {self.partial.size} bytes")
            except RegistryFailed as failure:
                turn += 1
                if self.partial.size > self.most:
                    self.most = self.partial.size
                    self.retries.renew()
                await self.retries.pause(failure)

    async def _read(self, stream: BodyStream) -> bool:
        """Whether the end was reached."""
        self._check_offer(stream)
        if stream.offset > self.partial.size:
            raise RegistryFailed(f"{self.wanted.name} was sent from another place than asked for")
        if self.wanted.digest is None and not self.wanted.one_version and stream.offset < self.partial.size:
            await run_sync(self.partial.restart)
        skip = self.partial.size - stream.offset
        async with appending(self.partial) as appender:
            async for chunk in stream.chunks():
                fresh = chunk[skip:] if skip else chunk
                skip = max(skip - len(chunk), 0)
                if fresh:
                    if stream.mirror:
                        self.suppliers.add(stream.mirror)
                    self._check_total(appender.size + len(fresh), at_most=True)
                    await appender.give(fresh)
                    self.on_bytes(appender.size)
        return stream.total in (None, self.partial.size)

    def _check_offer(self, stream: BodyStream) -> None:
        """A mirror that has something else under this name is left out; what others sent stays."""
        try:
            self._check_total(stream.total)
        except ContentRefused as refused:
            if not stream.mirror:
                raise
            log.warning("mirror_skipped", mirror=stream.mirror, reason=refused.message)
            self.avoid.add(stream.mirror)
            raise RegistryFailed(f"{stream.mirror}: {refused.message}") from refused

    def _check_total(self, total: int | None, *, at_most: bool = False) -> None:
        expected = self.wanted.size
        if total is None or expected is None or total == expected or (at_most and total < expected):
            return
        raise ContentRefused(
            f"{self.wanted.name} is {'at least ' if at_most else ''}{total} bytes long; "
            f"it was promised with {expected}"
        )


def _check_room(image: Image, store: BlobStore) -> None:
    missing = sum(store.missing_bytes(layer.digest, layer.size) for layer in set(image.layers))
    require_headroom(store.root, missing, image.name)
