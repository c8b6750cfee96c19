"""Checks now and then which digests the tags of installed images stand for, and what can be upgraded.
Frontends tell each other what they have heard."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.broadcast import DebouncedBroadcast
from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.core.ids import FrontendId
from remuda.fleet.verdicts import ObservedNode
from remuda.gallery.model import Reading
from remuda.ops.broadcast import FrontendSubject
from remuda.ops.ports import Build, BusPort, Pin, Pinner
from remuda.ops.upgrades import (
    BadVersions,
    CheckedSource,
    ImageStatus,
    Unchecked,
    Upgrade,
    Withheld,
    candidates,
    checked_sources,
    offered,
    unchecked,
    unread,
    upgrades,
)
from remuda.wire import subjects
from remuda.wire.broadcasts import ChangeMessage
from remuda.wire.codec import OMIT_EMPTY, OMIT_NONE, Many, Message, Timestamp

log = structlog.get_logger(__name__)

PIN_S: Final = 5.0  # For all registries together.
_AT_ONCE_MAX: Final = 16


async def pin_all(
    pinner: Pinner, builds: Collection[Build], patience_s: float = PIN_S
) -> Mapping[Build, Pin]:
    """What each stands for. Who has not answered in time is in trouble."""
    pins = dict.fromkeys(builds, Pin(trouble=f"no answer within {patience_s:g} s"))
    slots = anyio.CapacityLimiter(_AT_ONCE_MAX)

    async def one(build: Build) -> None:
        async with slots:
            pins[build] = await pinner.pin(build)

    with anyio.move_on_after(patience_s):
        async with anyio.create_task_group() as asking:
            for build in builds:
                asking.start_soon(one, build)
    return pins


FIRST: Final = timedelta(seconds=10)
EVERY: Final = timedelta(hours=6)
AGAIN: Final = timedelta(minutes=1)  # After a look that failed.
_IMAGES_MAX: Final = 2000  # Images, so that the message fits.
_GAP_S: Final = 1.0
_UNNAMED: Final = FrontendId("")


class CheckedImage(Message):
    """What a registry said about one image."""

    uri: str
    digest: Annotated[str, OMIT_EMPTY] = ""
    trouble: Annotated[str, OMIT_EMPTY] = ""
    at: Annotated[Timestamp | None, OMIT_NONE] = None


class UpgradesChecked(ChangeMessage):
    """Frontend to frontends, ours: what registries said when they were asked last."""

    images: Annotated[Many[CheckedImage], OMIT_EMPTY] = ()


def with_news(known: Mapping[str, ImageStatus], checked: Sequence[CheckedImage]) -> dict[str, ImageStatus]:
    """What is known after another frontend has told: of each image what was heard last. That another could
    not ask says nothing about what this one has heard."""
    after = dict(known)
    for one in checked:
        ours = known.get(one.uri)
        later = one.at is not None and (ours is None or ours.at is None or ours.at < one.at)
        if ours is None or later:
            after[one.uri] = ImageStatus(one.digest, one.trouble, one.at)
    return after


class Look(Protocol):
    async def __call__(self, *, afresh: bool = False) -> tuple[Sequence[ObservedNode], Sequence[Reading]]: ...


@dataclass(frozen=True, slots=True)
class Checked:
    """What could be upgraded, and which sources could not be asked."""

    upgrades: Mapping[str, Upgrade]
    unchecked: tuple[Unchecked, ...]
    unread: tuple[Unchecked, ...] = ()  # Galleries that nothing installed came from.
    sources: tuple[CheckedSource, ...] = ()  # Who was asked, and when.
    withheld: tuple[Withheld, ...] = ()  # Newer versions that failed to start where they were tried.


class UpgradeCheck:
    """What was heard is remembered; what follows from it is computed from what nodes have now."""

    def __init__(
        self,
        look: Look,
        pinner: Pinner,
        clock: Clock,
        *,
        bad_versions: Callable[[], Awaitable[BadVersions]],
        first: timedelta = FIRST,
        every: timedelta = EVERY,
        bus: BusPort | None = None,
        frontend: FrontendId = _UNNAMED,
    ) -> None:
        self._look = look
        self._bad_versions = bad_versions
        self._pinner = pinner
        self._clock = clock
        self._first = first
        self._every = every
        self._known: dict[str, ImageStatus] = {}
        self._frontend = frontend
        self._subject: FrontendSubject[UpgradesChecked] | None = None
        if bus is not None:
            self._subject = FrontendSubject(bus, subjects.UPGRADES_CHECKED, frontend, UpgradesChecked)
        self._broadcast = DebouncedBroadcast(self._publish, gap_s=_GAP_S)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        async with anyio.create_task_group() as tasks:
            if self._subject is not None:
                tasks.start_soon(self._subject.listen, self._receive)
                tasks.start_soon(self._broadcast.run)
            await self._check_now_and_then()

    async def _check_now_and_then(self) -> None:
        await anyio.sleep(self._first.total_seconds())
        while True:
            wait = self._every
            try:
                await self.check()
            except RemudaError as error:
                log.warning("upgrades_not_checked", reason=error.message)
                wait = min(wait, AGAIN)
            await anyio.sleep(wait.total_seconds())

    async def check(self) -> Checked:
        """Ask galleries and registries, each within a few seconds; then as `current`. Waits for no node."""
        nodes, readings = await self._look(afresh=True)
        uris = frozenset[str]().union(*candidates(nodes, readings).values())
        self._known |= await self._ask(uris)
        self._known = {uri: status for uri, status in self._known.items() if uri in uris}
        self._broadcast.send()
        checked = await self._checked(nodes, readings)
        unasked = [one.source for one in checked.unchecked]
        log.info("upgrades_checked", images=len(uris), upgrades=len(checked.upgrades), unasked=unasked)
        return checked

    async def _publish(self) -> bool:
        assert self._subject is not None, "without a bus the broadcast does not run"
        images = _published(self._known)
        return await self._subject.publish(UpgradesChecked(frontend=self._frontend, images=images))

    def _receive(self, message: UpgradesChecked) -> None:
        self._known = with_news(self._known, message.images)

    async def current(self) -> Checked:
        """What could be upgraded, as far as was heard of galleries and registries."""
        return await self._checked(*await self._look())

    async def _checked(self, nodes: Sequence[ObservedNode], readings: Sequence[Reading]) -> Checked:
        found, withheld = offered(upgrades(nodes, readings, self._known), await self._bad_versions())
        unasked = tuple(unchecked(nodes, readings, self._known))
        sources = tuple(checked_sources(nodes, readings, self._known))
        return Checked(found, unasked, tuple(unread(readings, unasked)), sources, withheld)

    async def _ask(self, uris: Collection[str]) -> Mapping[str, ImageStatus]:
        """A registry that cannot be asked takes nothing back of what it said before."""
        asked_at = self._clock.now()
        pins = await pin_all(self._pinner, [Build(uri) for uri in uris])
        return {
            build.uri: ImageStatus(pin.digest, at=asked_at)
            if pin.digest
            else replace(self._known.get(build.uri, ImageStatus()), trouble=pin.trouble)
            for build, pin in pins.items()
        }


def _published(statuses: Mapping[str, ImageStatus]) -> tuple[CheckedImage, ...]:
    return tuple(
        CheckedImage(uri=uri, digest=status.digest, trouble=status.trouble, at=status.at)
        for uri, status in sorted(statuses.items())[:_IMAGES_MAX]
    )
