"""Galleries kept up to date: shipped, from files, or over HTTP with mirrors and a copy on disk; and a view
of them for callers that cannot wait: they get what could be read in a few seconds, and reading goes on.

Whatever cannot be reached is said in the reading; the other galleries, and older copies, go on answering.
"""

import hashlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Annotated, Final, Generic, Protocol

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskStatus
from typing_extensions import TypeVar

from remuda.core.clock import Clock
from remuda.core.errors import Invalid, PeerFailed, RemudaError, Unavailable
from remuda.core.events import AutoResetEvent, Notifier
from remuda.gallery.fetch import CachedCopy, Fetched, Fetcher, Validators, shown
from remuda.gallery.index import LIMITS, read_index
from remuda.gallery.model import E_co, Gallery, GalleryEntry, GalleryIndex, Reading, galleries_from_json
from remuda.gallery.model_entries import ModelEntry, read_model_index
from remuda.host.folder import write_private
from remuda.wire.codec import OMIT_EMPTY, Message, Timestamp, decode, encode

log = structlog.get_logger()

# JSON writes one byte of YAML as up to six.
_FILE_BYTES_MAX: Final = 6 * LIMITS.bytes + 4096


class Copy(Message):
    """An index as it was last seen. One file holds it all, so that text and validators cannot part."""

    source: str  # The address that supplied it: the gallery's own, or a mirror.
    etag: Annotated[str, OMIT_EMPTY] = ""
    last_modified: Annotated[str, OMIT_EMPTY] = ""
    confirmed_at: Timestamp
    content: str

    @property
    def validators(self) -> Validators:
        return Validators(self.etag, self.last_modified)


class Cache:
    """Blocking: call it from a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, url: str) -> Copy | None:
        """The copy for this address. One that cannot be read counts as none: it can be fetched again."""
        path = self._path(url)
        try:
            with path.open("rb") as handle:
                return decode(Copy, handle.read(_FILE_BYTES_MAX + 1), bytes_max=_FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        except (OSError, RemudaError) as error:
            log.warning("gallery_copy_unreadable", path=str(path), error=str(error))
            return None

    def write(self, url: str, copy: Copy) -> None:
        """A copy that cannot be kept costs the next fetch, not this answer."""
        path = self._path(url)
        try:
            write_private(path, encode(copy).decode())
        except OSError as error:
            log.warning("gallery_copy_not_kept", path=str(path), error=str(error))

    def _path(self, url: str) -> Path:
        return self._folder / f"{hashlib.sha256(url.encode()).hexdigest()}.json"


REMUDA: Final = Gallery(name="remuda", url="builtin:gallery")
LOCALAI: Final = Gallery(
    name="localai",
    url="https://index.localai.io/backends",
    mirrors=("github:mudler/LocalAI/backend/index.yaml@master",),
)
DEFAULT_GALLERIES: Final = (REMUDA, LOCALAI)

REMUDA_MODELS: Final = Gallery(name="remuda", url="builtin:models")
LOCALAI_MODELS: Final = Gallery(
    name="localai",
    url="https://index.localai.io/models",
    mirrors=("github:mudler/LocalAI/gallery/index.yaml@master",),
)
DEFAULT_MODEL_GALLERIES: Final = (REMUDA_MODELS, LOCALAI_MODELS)


def shipped_index() -> bytes:
    return _shipped("index.yaml")


def shipped_models() -> GalleryIndex[ModelEntry]:
    """What can be installed by name without asking any other gallery."""
    return read_model_index(_shipped("models.yaml"))


def _shipped(name: str) -> bytes:
    return resources.files("remuda.gallery").joinpath("data", name).read_bytes()


E = TypeVar("E", default=GalleryEntry)

FRESH: Final = timedelta(hours=1)  # A copy younger than this is not asked about.
ASK_AGAIN: Final = timedelta(seconds=30)  # After every address failed.
SKIP_FAILED: Final = timedelta(minutes=10)  # One address, while others answer.
_WARNED_MAX: Final = 256  # Addresses come with requests too.


@dataclass(frozen=True, slots=True)
class _Held(Generic[E_co]):
    reading: Reading[E_co]
    until_s: float


@dataclass(frozen=True, slots=True)
class _Kept(Generic[E_co]):
    copy: Copy
    index: GalleryIndex[E_co]


class FailureLog:
    """Logs the trouble of an address when it begins or changes and when it is over, not at each look."""

    def __init__(self) -> None:
        self._warned: dict[str, str] = {}  # By address: its trouble as last logged.

    def failed(self, gallery: Gallery, address: str, trouble: str) -> None:
        if self._warned.get(address) == trouble:
            return
        if len(self._warned) >= _WARNED_MAX:
            del self._warned[next(iter(self._warned))]
        self._warned[address] = trouble
        log.warning("gallery_address_failed", gallery=gallery.name, address=shown(address), error=trouble)

    def answered(self, gallery: Gallery, address: str) -> None:
        """Those that come after it are not asked while this one answers: their trouble is over too."""
        every = _every_address(gallery)
        if any([self._warned.pop(one, "") for one in every[every.index(address) :]]):
            log.info("gallery_address_answers", gallery=gallery.name, address=shown(address))


class IndexSources(ABC, Generic[E]):
    """The configured galleries, in their order. Callers that come together share one fetch."""

    def __init__(
        self,
        galleries: tuple[Gallery, ...],
        *,
        fetcher: Fetcher,
        cache: Cache,
        clock: Clock,
        failures: FailureLog | None = None,
    ) -> None:
        """`failures` is shared by the sources of one process, of which some live for one request only."""
        self._galleries = galleries
        self._fetcher = fetcher
        self._cache = cache
        self._clock = clock
        self._held: dict[Gallery, _Held[E]] = {}
        self._turns: defaultdict[Gallery, anyio.Lock] = defaultdict(anyio.Lock)
        self._failed_s: dict[str, float] = {}
        self._failures = failures or FailureLog()

    @abstractmethod
    def _read_index(self, content: bytes) -> GalleryIndex[E]:
        """What a gallery has sent."""

    @abstractmethod
    def _shipped(self) -> GalleryIndex[E]:
        """What the built-in gallery has."""

    async def read(self, *, refresh: bool = False) -> tuple[Reading[E], ...]:
        """What each gallery offers, in configured order. `refresh` asks even about fresh copies."""
        readings: dict[int, Reading[E]] = {}

        async def one(place: int, gallery: Gallery) -> None:
            readings[place] = await self._reading(gallery, refresh)

        async with anyio.create_task_group() as group:
            for place, gallery in enumerate(self._galleries):
                group.start_soon(one, place, gallery)
        return tuple(readings[place] for place in range(len(self._galleries)))

    async def _reading(self, gallery: Gallery, refresh: bool) -> Reading[E]:
        before = self._held.get(gallery)
        async with self._turns[gallery]:
            held = self._held.get(gallery)
            if held is not None and (
                held is not before if refresh else self._clock.monotonic() < held.until_s
            ):
                return held.reading
            reading = await self._read_now(gallery, refresh)
            until_s = self._clock.monotonic() + self._good_for(reading).total_seconds()
            self._held[gallery] = _Held(reading, until_s)
            return reading

    def _good_for(self, reading: Reading[E]) -> timedelta:
        if reading.confirmed_at is None or reading.trouble:
            return min(ASK_AGAIN, _fresh_for(reading.gallery))
        return _fresh_for(reading.gallery) - (self._clock.now() - reading.confirmed_at)

    async def _read_now(self, gallery: Gallery, refresh: bool) -> Reading[E]:
        if gallery.verification is not None:
            # Ignoring what it demands would hand out images that were not verified.
            return Reading(gallery, trouble="it demands signed images, and signatures cannot be checked yet")
        if gallery.builtin:
            return Reading(gallery, self._shipped(), confirmed_at=self._clock.now())
        kept = await to_thread.run_sync(self._kept, gallery)
        if kept is not None and not refresh and self._is_fresh(gallery, kept.copy):
            return Reading(gallery, kept.index, confirmed_at=kept.copy.confirmed_at)
        return await self._ask(gallery, kept)

    def _kept(self, gallery: Gallery) -> _Kept[E] | None:
        copy = self._cache.read(gallery.url)
        try:
            return _Kept(copy, self._read_index(copy.content.encode())) if copy else None
        except RemudaError as error:
            log.warning("gallery_copy_unusable", gallery=gallery.name, error=str(error))
            return None

    def _is_fresh(self, gallery: Gallery, copy: Copy) -> bool:
        """A copy from the future, after a clock was set back, is not fresh: it would stay so for ever."""
        return timedelta(0) <= self._clock.now() - copy.confirmed_at < _fresh_for(gallery)

    async def _ask(self, gallery: Gallery, kept: _Kept[E] | None) -> Reading[E]:
        troubles: list[str] = []
        for address in self._addresses(gallery):
            try:
                current = await self._current(address, kept)
            except RemudaError as error:
                self._failed_s[address] = self._clock.monotonic()
                self._failures.failed(gallery, address, str(error))
                troubles.append(str(error))
            else:
                self._failed_s.pop(address, None)
                self._failures.answered(gallery, address)
                await to_thread.run_sync(self._cache.write, gallery.url, current.copy)
                return Reading(gallery, current.index, confirmed_at=current.copy.confirmed_at)
        trouble = "; ".join(troubles)
        if kept is None:
            return Reading(gallery, trouble=trouble)
        return Reading(gallery, kept.index, trouble=trouble, confirmed_at=kept.copy.confirmed_at)

    async def _current(self, address: str, kept: _Kept[E] | None) -> _Kept[E]:
        known = CachedCopy(kept.copy.source, kept.copy.validators) if kept else None
        answer = await self._fetcher.fetch(address, known)
        now = self._clock.now()
        if isinstance(answer, Fetched):
            try:
                index = await to_thread.run_sync(self._read_index, answer.content)
            except RemudaError as error:
                raise PeerFailed(f"{shown(answer.source)} holds no usable index: {error}") from None
            if index.complaints and (kept is None or kept.index.complaints != index.complaints):
                first, count = str(index.complaints[0]), len(index.complaints)
                log.warning("gallery_entries_left_out", address=shown(address), count=count, first=first)
            return _Kept(_copy_of(answer, now), index)
        assert kept is not None, "only a copy that we have can be unchanged"
        return _Kept(kept.copy.model_copy(update={"confirmed_at": now}), kept.index)

    def _addresses(self, gallery: Gallery) -> tuple[str, ...]:
        """The gallery's own and its mirrors, less those that failed lately; all when all did."""
        every = _every_address(gallery)
        long_ago_s = self._clock.monotonic() - SKIP_FAILED.total_seconds()
        return tuple(one for one in every if self._failed_s.get(one, long_ago_s) <= long_ago_s) or every


class Sources(IndexSources[GalleryEntry]):
    """Of backends."""

    def _read_index(self, content: bytes) -> GalleryIndex[GalleryEntry]:
        return read_index(content)

    def _shipped(self) -> GalleryIndex[GalleryEntry]:
        return read_index(shipped_index())


class ModelSources(IndexSources[ModelEntry]):
    """Of models."""

    def _read_index(self, content: bytes) -> GalleryIndex[ModelEntry]:
        return read_model_index(content)

    def _shipped(self) -> GalleryIndex[ModelEntry]:
        return shipped_models()


def _every_address(gallery: Gallery) -> tuple[str, ...]:
    return tuple(dict.fromkeys((gallery.url, *gallery.mirrors)))


def _fresh_for(gallery: Gallery) -> timedelta:
    """A local file is read each time, so that edits take effect."""
    return timedelta(0) if gallery.url.startswith("file:") else FRESH


def _copy_of(answer: Fetched, now: datetime) -> Copy:
    return Copy(
        source=answer.source,
        etag=answer.validators.etag,
        last_modified=answer.validators.last_modified,
        confirmed_at=now,
        content=answer.content.decode("utf-8-sig"),
    )


PATIENCE_S: Final = 5.0


class Galleries(Protocol[E_co]):
    async def read(self, *, refresh: bool = False) -> tuple[Reading[E_co], ...]: ...


class GalleryView(Generic[E]):
    """`open_galleries` is for those that a request brings in place of the configured ones."""

    def __init__(
        self,
        configured: Galleries[E],
        open_galleries: Callable[[tuple[Gallery, ...]], Galleries[E]],
        *,
        local_files: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._configured = configured
        self._open = open_galleries
        self._local_files = local_files
        self._patience_s = patience_s
        self._latest: tuple[Reading[E], ...] | None = None
        self._asked = AutoResetEvent()
        self._afresh: anyio.Event | None = None  # For whom a copy will not do, nor a reading under way.
        self._reads = Notifier()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await self._asked.wait()
            afresh, self._afresh = self._afresh, None
            self._latest = await self._configured.read(refresh=afresh is not None)
            self._reads.notify()
            if afresh is not None:
                afresh.set()

    async def readings(self, galleries: str = "", *, afresh: bool = False) -> tuple[Reading[E], ...]:
        """What the galleries offer: those of this JSON text, or the configured ones. `afresh` asks them even
        where a copy is young; those that do not answer in time are said to be in trouble."""
        return await self._given(galleries) if galleries else await self._usual(afresh)

    async def _usual(self, afresh: bool) -> tuple[Reading[E], ...]:
        read = self._reads.changed
        if afresh:
            read = self._afresh = self._afresh or anyio.Event()
        self._asked.set()
        with anyio.move_on_after(self._patience_s) as waiting:
            await read.wait()
        if self._latest is None:
            raise Unavailable("the galleries are being read for the first time; try again in a moment")
        if afresh and waiting.cancelled_caught:
            return tuple(self._unanswered(one) for one in self._latest)
        return self._latest

    def _unanswered(self, reading: Reading[E]) -> Reading[E]:
        """Which of them is slow is not known: what ships with Remuda is not."""
        if reading.trouble or reading.gallery.builtin:
            return reading
        return replace(reading, trouble=f"no answer within {self._patience_s:g} s")

    async def _given(self, text: str) -> tuple[Reading[E], ...]:
        galleries = galleries_from_json(text)
        local = next((one.url for one in galleries if one.url.startswith("file:")), "")
        if local and not self._local_files:
            raise Invalid(f"the gallery {local} is a file on the frontend, which is not allowed here")
        with anyio.move_on_after(self._patience_s):
            return await self._open(galleries).read()
        raise Unavailable("the galleries that were given did not answer in time")
