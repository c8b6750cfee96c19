"""What operations need of the store, the bus and the registries, as data and protocols."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

from remuda.core.ids import BootId, FrontendId, NodeId
from remuda.fleet.verdicts import BackendInventory
from remuda.gallery.references import registry
from remuda.ops.model import (
    Attempt,
    Dispatch,
    Ending,
    Kind,
    Operation,
    OpId,
    Outcome,
    State,
    Step,
    StepKey,
    Wish,
)
from remuda.wire.nodes import InstalledArtifact


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """The request by which an attempt was sent. The frontend that holds it renews `open_until`; one that died
    renews nothing."""

    op: OpId
    node: NodeId
    attempt: int
    begun_at: datetime
    open_until: datetime
    ended: bool = False
    ending: Ending = None  # Once it has ended.

    def awaited(self, now: datetime) -> bool:
        """A frontend waits for the reply, and will hear it."""
        return not self.ended and now < self.open_until


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a node is. The last one is kept, so that a frontend that joins later has something to show."""

    attempt: int
    fraction: float = 0.0  # 0..1, of the whole attempt.
    phase: str = ""
    file_name: str = ""
    current_bytes: int = 0
    total_bytes: int = 0
    at: datetime | None = None
    file_number: int = 0  # Of several that come one after another.
    file_count: int = 0
    file_bytes: int = 0  # Of this file alone.
    file_size: int = 0
    left: timedelta | None = None  # Of the phase, as it was measured; never stored.


@dataclass(frozen=True, slots=True)
class View:
    """An operation with all that is stored about it. `change` orders views: readers continue after the last
    they have seen."""

    operation: Operation
    steps: tuple[Step, ...]
    change: int
    attempts: tuple[Attempt, ...] = ()
    progress: tuple[tuple[NodeId, Progress], ...] = ()
    number: int = 0  # It came as the how-manieth change: lists are in this order, and go on before it.


@dataclass(frozen=True, slots=True)
class Live:
    """Everything that is not over, as it was at one instant of the store's clock."""

    now: datetime
    operations: tuple[Operation, ...]
    steps: tuple[Step, ...]  # All steps of these operations, final ones too.
    requests: tuple[OpenRequest, ...]  # Of the attempts that are at work.
    inventories: tuple[BackendInventory, ...]
    ended_at: Mapping[NodeId, datetime] = field(default_factory=dict)  # When a step was last over on it.
    loads: Mapping[StepKey, BootId | None] = field(default_factory=dict)  # Under way: the worker's life in
    # which the replica's process runs; None: its files are still on their way, and nothing runs yet.


@dataclass(frozen=True, slots=True)
class Submitted:
    view: View
    joined: bool  # It was there already: the same wish, or the same idempotency key.

    @property
    def operation(self) -> Operation:
        return self.view.operation


@dataclass(frozen=True, slots=True)
class Filter:
    """Which operations to list, newest first."""

    finished: bool | None = None  # None: both.
    kinds: frozenset[Kind] = frozenset()  # None named: all.
    backend: str = ""
    model: str = ""
    node: NodeId | None = None
    dismissed: bool = False  # Those that a person has put away, too, however long ago.
    history: bool = False  # The same, but for those that were cleared from the history.
    failed: bool = False  # Only those with a step that failed.
    limit: int = 50
    before: int | None = None  # Only those with a lower number.
    ids: tuple[OpId, ...] = ()
    id_begins: str = ""


class OpStore(Protocol):
    """Every call is one transaction, or shares one with others like it. Whatever changes gets a new `change`
    number, for all frontends alike."""

    async def submit(self, operation: Operation, steps: Sequence[Step]) -> Submitted:
        """Record a wish, asked now by the store's clock. The same wish under way is joined: what failed of
        it, or waits for its next attempt, is tried now, and nodes that are done are looked at again. One with
        its idempotency key is joined as it is.
        A wish that is pinned to other bytes is another one. Steps that want the opposite are marked replaced,
        and so are those from the same source that wait to fetch other bytes. Conflict when the key was used
        for something else: another kind, source, roll-out or selection; Unavailable when too many wait."""
        ...

    async def live(self) -> Live: ...

    async def commit(
        self, changes: Sequence[Step], owner: FrontendId, open_for: timedelta
    ) -> Collection[Step]:
        """Write steps whose stored version is still theirs; answers those that were written, with their new
        version. One that has just begun gets a request, open for so long; one that ended closes its own.
        An operation whose steps are all final is finished."""
        ...

    async def hold(self, op: OpId, node: NodeId, attempt: int, open_for: timedelta) -> None:
        """The frontend still waits for this reply."""
        ...

    async def let_go(self, owner: FrontendId) -> None:
        """What this frontend carried out for the frontends in an earlier life is not at work any more:
        the first to come goes on with it."""
        ...

    async def answer(self, op: OpId, node: NodeId, outcome: Outcome) -> None:
        """The reply has come. Only the first counts, and only for the attempt that is at work."""
        ...

    async def note_progress(
        self, progress: Mapping[tuple[OpId, NodeId], Progress], silent_for: timedelta = timedelta()
    ) -> None:
        """Kept only for attempts at work, and only where it does not fall. `silent_for`: only of attempts of
        for which nothing was kept for so long."""
        ...

    async def note_inventory(
        self, node: NodeId, boot: BootId, backends: Sequence[InstalledArtifact], age: timedelta = timedelta()
    ) -> None:
        """What a worker has, as it was `age` ago."""
        ...

    async def wish(self, op: OpId, wish: Wish) -> Operation:
        """NotFound for an unknown one; Conflict for one that is over."""
        ...

    async def retry(self, op: OpId, nodes: Collection[NodeId] | None, by: str) -> Operation:
        """Begin failed steps afresh, and those in backoff now: these, or all. Conflict when none can be."""
        ...

    async def dismiss(self, ops: Collection[OpId]) -> int:
        """Put these away, as far as they are finished. How many there were."""
        ...

    async def clear_history(self) -> int:
        """Put all finished operations away, and out of the history. How many there were."""
        ...

    async def view(self, op: OpId) -> View:
        """NotFound for an unknown one."""
        ...

    async def views(self, which: Filter) -> Sequence[View]: ...

    async def changed_since(self, change: int, limit: int) -> tuple[Sequence[View], int]:
        """Operations that changed after `change`, by their last change, and the newest number of all."""
        ...


class Figures(Protocol):
    """What is counted of operations."""

    def submitted(self, kind: Kind) -> None: ...

    def looked_at(self, live: Sequence[Operation]) -> None: ...

    def attempted(self, kind: Kind) -> None: ...

    def ended(self, kind: Kind, outcome: State) -> None:
        """One node's share is over."""
        ...


class Uncounted:
    """Implements Figures where none are wanted."""

    def submitted(self, kind: Kind) -> None:
        pass

    def looked_at(self, live: Sequence[Operation]) -> None:
        pass

    def attempted(self, kind: Kind) -> None:
        pass

    def ended(self, kind: Kind, outcome: State) -> None:
        pass


UNCOUNTED: Final = Uncounted()


class ModelWork(Protocol):
    """Loads and unloads, which frontends carry out themselves (see scheduler). Cancelled when it is no longer
    wanted: what it began on the worker is then stopped there."""

    async def carry_out(self, step: Step) -> Ending: ...

    async def latest_change(self) -> int:
        """Of replicas: what is written later is not meant by what a worker stopped before."""
        ...

    async def forget_stopped(self, node: NodeId, keys: Collection[str], known: int) -> None:
        """The worker has stopped these processes (`model#replica`) for a change of their backend. Replicas
        written after `known` are others."""
        ...

    def backend_installed(self, node: NodeId, backend: str, seconds: float) -> None:
        """It took so long; beside all loads."""
        ...


class FrontendWork(Protocol):
    """Steps of FRONTENDS: installs and removals of models (see model_installs). Cancelled when it is no
    longer wanted, or another frontend has taken over."""

    async def carry_out(self, step: Step) -> Ending: ...


class Commander(Protocol):
    async def send(self, dispatch: Dispatch, step: Step) -> None:
        """Begin to send it, and return. The reply, whenever it comes, goes to the store."""
        ...


@dataclass(frozen=True, slots=True)
class Build:
    """An image, and the platform of a machine that is to have it."""

    uri: str
    platform: str = ""  # Such as linux/arm64; empty: not known.


@dataclass(frozen=True, slots=True)
class Pin:
    digest: str = ""  # Of the image index; empty: it could not be had.
    missing: str = ""  # Why no machine of that platform can have it.
    trouble: str = ""  # Why it could not be found out.
    size_bytes: int | None = None  # Of its layers for that platform; None: not known.
    refused: bool = False  # The registry answered, and `trouble` is what its answer means.

    def unasked(self, uri: str) -> str:
        """Why it is not known what the image stands for now, as the beginning of a sentence; empty: it is."""
        if self.refused or not self.trouble:
            return self.trouble
        return f"{registry(uri)} could not be asked what {uri} stands for now ({self.trouble})"


class Pinner(Protocol):
    async def pin(self, build: Build) -> Pin:
        """What the registry says. Neither raises nor insists: what cannot be had now stays empty."""
        ...


class BusMessage(Protocol):
    @property
    def subject(self) -> str: ...

    @property
    def payload(self) -> bytes: ...


class BusPort(Protocol):
    """The bus. Raises BusUnusable while it is down, BusRefused when it does not let us."""

    async def request(self, subject: str, payload: bytes, limit: timedelta) -> bytes:
        """The reply. Raises NodeUnreachable when nothing listens, and PeerFailed after `limit`: the worker
        may have received it then, and may be at work on it."""
        ...

    async def publish(self, subject: str, payload: bytes) -> None: ...

    async def subscribe(self, subject: str, handler: Callable[[BusMessage], Awaitable[None]]) -> object:
        """Returns when the server has confirmed it, however long that takes."""
        ...


class BusCheck(Protocol):
    def __call__(self) -> str:
        """Why nothing can be sent over the bus now; empty: it can."""
        ...


class PatientBusPort(BusPort, Protocol):
    async def request(
        self, subject: str, payload: bytes, limit: timedelta, *, on_gap: Callable[[], None] | None = None
    ) -> bytes:
        """The same. With `on_gap` a lost connection ends nothing: that is called, for the reply may have been
        missed, and one that comes when the bus is back counts."""
        ...


class TapPort(Protocol):
    """A bus connection on which nothing waits behind what is tapped."""

    async def tap(self, subject: str, take: Callable[[BusMessage], None]) -> Callable[[], Awaitable[None]]:
        """Returns when the server has confirmed it, however long that takes; answers how to end it."""
        ...


class InventoryLister(Protocol):
    def want(self, nodes: Iterable[tuple[NodeId, BootId]], *, anew: bool = False) -> None:
        """Ask these nodes soon what they have; `anew`: though their list is young. Returns at once."""
        ...


class OpSignal(Protocol):
    """Implemented by broadcast.ChangeSignal."""

    def notify(self) -> None:
        """Operations were written here, or what they go by has changed: the reconcilers of all frontends look
        at once, and so do the feeds. Never waits."""
        ...
