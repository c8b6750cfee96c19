"""Requests for a model without a replica: wait for its load, or fail with the reason. Before a name is
called unknown, the store is looked at once more: the model may have been added on another frontend a moment
ago. That is off the path of models that are known, and however many ask, few look.
"""

import math
import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import anyio

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.errors import NoCapacity, RemudaError, Unavailable
from remuda.core.ids import NodeId
from remuda.inference.failures import UpstreamFailed
from remuda.ops.model import OpId, State
from remuda.ops.ports import Progress, View
from remuda.router.live_table import Tables
from remuda.router.loading import (
    BackendMissing,
    LoadStatus,
    Meanwhile,
    ModelLoadFailed,
    ModelLoading,
    ModelUnloaded,
    Overloaded,
)
from remuda.router.suspects import Suspects
from remuda.router.table import Route
from remuda.scheduler.demand import (
    Demand,
    DemandAnswer,
    Failed,
    GivenUp,
    LoadFound,
    NoRoomYet,
    StillLooking,
    UnderWay,
)
from remuda.scheduler.loader import LOADING
from remuda.scheduler.model import LATER, REASONS_MAX, Replica, ReplicaState, Unplaceable
from remuda.scheduler.ports import FilesComing, FilesNotFetched
from remuda.scheduler.ranking import NO_WISHES, NodeWishes
from remuda.wire.backends import InstallPhase
from remuda.wire.files import FilePhase

_LOOK_S: Final = 1.0
_REMOVED_S: Final = 2.0  # For the store to say whether a node is still there.
_NEWS_S: Final = 2.0  # For a report about what has just been installed to arrive.
_RETRY_LEAST_S: Final = 5
_RETRY_MOST_S: Final = 300


class ColdPath:
    """Implements router.loading.Loading."""

    def __init__(
        self,
        demand: Demand,
        tables: Tables,
        suspects: Suspects,
        clock: Clock,
        *,
        is_removed: Callable[[NodeId], Awaitable[bool]],
    ) -> None:
        self._demand = demand
        self._tables = tables
        self._suspects = suspects
        self._clock = clock
        self._is_removed = is_removed

    async def bring(
        self, model: str, wait_s: float | None, meanwhile: Meanwhile, wishes: NodeWishes = NO_WISHES
    ) -> None:
        began_s = self._clock.monotonic()
        waits_for: OpId | None = None
        while True:
            changed = self._tables.changed
            if self._tables.know(model):  # Those who waited for it together need not look one after another.
                return
            answer = await self._demand.look(model, waits_for, wishes)
            if answer is None or self._tables.know(model):
                return
            if isinstance(answer, GivenUp) and waits_for is not None:
                raise ModelUnloaded(f"{model} was unloaded by an administrator while it was loading")
            if isinstance(answer, UnderWay):
                waits_for = answer.replica.op
            spent_s = self._clock.monotonic() - began_s
            status = LoadStatus(model) if _news_may_come(answer, spent_s) else self._told(model, answer)
            left_s = _left(wait_s, spent_s)
            if left_s == 0.0:
                raise _too_late(status, answer, wait_s or 0.0)
            await meanwhile(status)
            if isinstance(answer, StillLooking):  # It was waited for already.
                continue
            with anyio.move_on_after(min(_LOOK_S, left_s or _LOOK_S)):
                await changed.wait()

    async def look(self, model: str) -> LoadStatus | None:
        """Of a load under way, whichever frontend it is that loads it, or of one that has just failed."""
        found = await self._demand.under_way(model)
        if found is not None:
            return self._status(found)
        failed = await self._demand.failed(model)
        return None if failed is None else LoadStatus(model, "failed", failed.node)

    def suspect(self, route: Route, why: UpstreamFailed) -> None:
        self._suspects.add(route, why)

    async def gone(self, route: Route) -> bool:
        return await self._suspects.verdict(route)

    async def removed(self, route: Route) -> bool:
        with anyio.move_on_after(_REMOVED_S):
            try:
                return await self._is_removed(route.node)
            except RemudaError:
                return False
        return False

    def _told(self, model: str, answer: LoadFound | StillLooking) -> LoadStatus:
        match answer:
            case Failed(problem, node):
                raise ModelLoadFailed(
                    f"{model} could not be loaded on {node}: {problem.message}", hint=problem.hint
                )
            case Unplaceable():
                raise _nowhere(model, answer)
            case FilesNotFetched(problem):
                raise ModelLoadFailed(
                    f"the files of {model} could not be fetched: {problem.message}", hint=problem.hint
                )
            case FilesComing():
                return LoadStatus(model, waits_for=str(answer))
            case NoRoomYet(refused):
                told = refused.told(leaving_out=refused.unapproved, most=1)
                why = told[0].removesuffix(LATER) if told else "there are no nodes yet"
                return LoadStatus(model, waits_for=why)
            case StillLooking() | GivenUp():
                return LoadStatus(model)
            case UnderWay():
                return self._status(answer)

    def _status(self, found: UnderWay) -> LoadStatus:
        return status_of(found.replica, self._demand.current_view(found))


def _news_may_come(answer: DemandAnswer, spent_s: float) -> bool:
    """A backend that was registered on a machine a moment ago is in its worker's next report, which is on its
    way: until then it may only seem to be missing."""
    return isinstance(answer, Unplaceable) and answer.backend_unknown and spent_s < _NEWS_S


def _left(wait_s: float | None, spent_s: float) -> float | None:
    return None if wait_s is None else max(wait_s - spent_s, 0.0)


def _too_late(status: LoadStatus, answer: DemandAnswer, wait_s: float) -> Exception:
    if isinstance(answer, NoRoomYet):
        return _nowhere(status.model, answer.reasons)
    if isinstance(answer, Unplaceable):
        return _nowhere(status.model, answer)
    if isinstance(answer, StillLooking):
        return Unavailable(
            f"whether {status.model} is being loaded is not known yet", hint="try again in a while"
        )
    known = wait_s if status.eta_seconds is None else status.eta_seconds
    retry_after_s = round(min(max(known, _RETRY_LEAST_S), _RETRY_MOST_S))
    where = f" on {status.node}" if status.node else ""
    if isinstance(answer, FilesComing):
        return ModelLoading(
            f"{status.model} cannot be loaded yet: {answer}; try again in {retry_after_s} s",
            status,
            retry_after_s,
        )
    return ModelLoading(
        f"{status.model} is being loaded{where} ({status.state}, {status.progress:.0f} %); try again in "
        f"{retry_after_s} s",
        status,
        retry_after_s,
    )


def _nowhere(model: str, refused: Unplaceable) -> NoCapacity:
    if not refused.reasons:
        return NoCapacity(f"no node can take {model}: there are no nodes", hint="remuda join adds one")
    reasons = refused.told(leaving_out=refused.unapproved, most=REASONS_MAX)
    # Strangers chose their names, and a client cannot approve them.
    match len(refused.unapproved):
        case 0:
            pass
        case 1:
            reasons.append("1 node waits for approval")
        case waiting:
            reasons.append(f"{waiting} nodes wait for approval")
    kind = BackendMissing if refused.backend_unknown else NoCapacity
    return kind(f"no node can take {model}: {'; '.join(reasons)}", details=reasons)


_FILE_NUMBER: Final = re.compile(r" (\d{1,6})/(\d{1,6}) ")
_INSTALL_SHARE = 80.0  # Of the whole, where the backend has to be brought first.


def status_of(replica: Replica, view: View | None) -> LoadStatus:
    """`view` is the operation's, with live progress laid over it; None while it is just being made."""
    model = replica.key.model
    if view is None or not view.steps:
        return LoadStatus(model, placed=True)
    step = view.steps[0]
    if step.state is not State.RUNNING:
        state = "failed" if step.state is State.FAILED else "pending"
        return LoadStatus(model, state, step.node_name)
    progress = next((one for _, one in view.progress if one.attempt == step.attempt), Progress(step.attempt))
    # The row may be read before it is written that the load has come so far.
    if replica.state is ReplicaState.LOADING or progress.phase in (InstallPhase.STARTING, LOADING):
        return LoadStatus(model, "loading", step.node_name, _INSTALL_SHARE)
    if progress.phase in set(FilePhase):
        return _staging_status(model, step.node_name, progress)
    if not (progress.current_bytes or progress.total_bytes or progress.phase == InstallPhase.EXTRACTING):
        return LoadStatus(model, "pending", step.node_name)  # It may have the backend already.
    return LoadStatus(
        model,
        "installing",
        step.node_name,
        progress=round(progress.fraction * _INSTALL_SHARE, 1),
        bytes_sent=progress.current_bytes,
        total_bytes=progress.total_bytes,
        file_index=1 if progress.total_bytes else 0,
        total_files=1 if progress.total_bytes else 0,
    )


def _staging_status(model: str, node: str, progress: Progress) -> LoadStatus:
    """The share is of all files together, bytes are of the one that moved last. An older worker tells only
    those of all."""
    done, total = progress.current_bytes, progress.total_bytes
    number = _FILE_NUMBER.search(progress.file_name)
    staging = progress.phase == FilePhase.STAGING
    alone = progress.file_size > 0
    return LoadStatus(
        model,
        "staging",
        node,
        progress=round(100 * done / total, 1) if total and staging else 0.0,
        bytes_sent=(progress.file_bytes if alone else done) if staging else 0,
        total_bytes=progress.file_size if alone else total,
        file_index=int(number[1]) if number else 1,
        total_files=int(number[2]) if number else 1,
        eta_seconds=math.ceil(progress.left.total_seconds()) if progress.left and staging else None,
    )


class UnknownModels:
    """`refresh` reads the table again; concurrent callers share one reading."""

    def __init__(self, refresh: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._refresh = refresh
        self._clock = clock
        self._not_before_s = 0.0
        self._waiting = 0

    async def look(self) -> None:
        """The table is at least as new as this call when it returns. Unavailable when that cannot be had."""
        if self._waiting >= limits.UNKNOWN_MODELS_WAITING_MAX:
            raise Overloaded("too many requests for unknown models at once", hint="try again in a while")
        self._waiting += 1
        try:
            with anyio.fail_after(limits.UNKNOWN_MODEL_LOOK_S):
                await self._paced()
        except (RemudaError, TimeoutError) as error:
            reason = error.message if isinstance(error, RemudaError) else "the database does not answer"
            raise Unavailable(
                f"this frontend does not know the model and cannot look it up now: {reason}",
                hint="try again in a while, or ask another frontend",
            ) from error
        finally:
            self._waiting -= 1

    async def _paced(self) -> None:
        left_s = self._not_before_s - self._clock.monotonic()
        if left_s > 0:
            await anyio.sleep(left_s)
        self._not_before_s = self._clock.monotonic() + limits.UNKNOWN_MODEL_LOOK_GAP_S
        await self._refresh()


class ModelRefresh(Protocol):
    """Before a model is called unknown (see UnknownModels.look)."""

    async def __call__(self) -> None:
        """The table is at least as new as this call when it returns. Unavailable when that cannot be had."""
        ...


async def nothing_new() -> None:
    """For where the table is all there is."""
