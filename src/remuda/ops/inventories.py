"""Asks workers that send no reports, at a slow pace, which backends they have installed."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.core.ids import BootId, NodeId
from remuda.core.tasks import TaskOwner
from remuda.ops.ports import BusPort, OpSignal, OpStore
from remuda.wire import subjects
from remuda.wire.backends import BackendList, BackendListReply, InstalledBackend
from remuda.wire.codec import decode, encode
from remuda.wire.nodes import InstalledArtifact

log = structlog.get_logger(__name__)

EVERY: Final = timedelta(seconds=30)
_ANSWER: Final = timedelta(seconds=30)
_AT_ONCE_MAX: Final = 16


class Inventories:
    """`run` owns the questions; `signal` is given when an answer is stored."""

    def __init__(
        self,
        bus: BusPort,
        store: OpStore,
        clock: Clock,
        signal: OpSignal,
        every: timedelta = EVERY,
    ) -> None:
        self._bus = bus
        self._store = store
        self._clock = clock
        self._signal = signal
        self._every = every
        self._asked_s: dict[NodeId, tuple[BootId, float]] = {}
        self._slots = anyio.CapacityLimiter(_AT_ONCE_MAX)
        self._tasks = TaskOwner()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await self._tasks.run(task_status=task_status)

    def want(self, nodes: Iterable[tuple[NodeId, BootId]], *, anew: bool = False) -> None:
        """Ask these soon, each life of a worker at most once per pace; `anew`: at once, for what they told is
        old. Returns at once."""
        now_s = self._clock.monotonic()
        for node, boot in nodes:
            asked_boot, asked_s = self._asked_s.get(node, (None, 0.0))
            if anew or asked_boot != boot or now_s - asked_s >= self._every.total_seconds():
                self._asked_s[node] = (boot, now_s)
                self._tasks.start(self._ask, node, boot)

    async def refresh(self, nodes: Iterable[tuple[NodeId, BootId]]) -> None:
        """Ask these now, and return when each has answered or will not. Who does not answer is left out."""
        async with anyio.create_task_group() as asking:
            for node, boot in nodes:
                self._asked_s[node] = (boot, self._clock.monotonic())
                asking.start_soon(self._ask, node, boot)

    async def _ask(self, node: NodeId, boot: BootId) -> None:
        try:
            async with self._slots:
                asked_s = self._clock.monotonic()
                question = encode(BackendList())
                answer = await self._bus.request(subjects.backend_list(node), question, _ANSWER)
            listed = decode(BackendListReply, answer)
            if listed.error:  # With an error the list says nothing.
                log.warning("backends_not_listed", node=node, reason=listed.error)
                return
            # It tells of some moment after the question, and is taken to tell of none later than that.
            age = timedelta(seconds=self._clock.monotonic() - asked_s)
            await self._store.note_inventory(node, boot, [_artifact(one) for one in listed.backends], age)
        except RemudaError as error:
            log.warning("backends_not_listed", node=node, reason=error.message)
            return
        except Exception:
            log.exception("backends_listing_broke", node=node)
            return
        self._signal.notify()


def _artifact(backend: InstalledBackend) -> InstalledArtifact:
    return InstalledArtifact(
        name=backend.name,
        digest=backend.digest,
        version=backend.version,
        uri=backend.uri,
        gallery_url=backend.gallery_url,
        installed_at=backend.installed_at,
        is_system=backend.is_system,
        is_meta=backend.is_meta,
    )
