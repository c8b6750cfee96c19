"""What the scheduler needs of the store, of workers and of backends."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from remuda.core.errors import Problem
from remuda.core.ids import FrontendId, NodeId, ReplicaKey
from remuda.fleet.model import Node
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.models.files import Manifest, NeededFile
from remuda.ops.model import Operation, Step
from remuda.scheduler.model import Place, Renaming, Replica, Replicas, SeenFacts, StoredModel
from remuda.wire.backends import BackendInstall, BackendInstallReply, BackendListReply, InstallProgress
from remuda.wire.files import FilesDrop, FilesDropReply, FilesFetch, FilesFetchReply, WantedFile
from remuda.wire.models import ModelsRunningReply, ModelStop, ModelStopReply


@dataclass(frozen=True, slots=True)
class FilesComing:
    """What a model's configuration names is being fetched, or about to be."""

    op: str  # The operation; empty: it is not begun yet.
    waits: str = ""  # Why its last attempt came to nothing.

    def __str__(self) -> str:
        by = f" by operation {self.op[:8]}" if self.op else ""
        return f"its files are being fetched{by}{f' (retrying: {self.waits})' if self.waits else ''}"


@dataclass(frozen=True, slots=True)
class FilesNotFetched:
    """What a model's configuration names is not there, and is not tried again by itself."""

    problem: Problem
    op: str = ""

    def __str__(self) -> str:
        return f"its files could not be fetched: {self.problem.message}"


class ModelFetches(Protocol):
    async def state(self, stored: StoredModel) -> FilesComing | FilesNotFetched:
        """Of the files of a model that lacks some (`Catalogued.lacks_files`)."""
        ...


class ReplicaStore(Protocol):
    """Every call is one transaction; whatever changes a replica gets the next change number."""

    async def replicas(self) -> Replicas: ...

    async def claim(
        self,
        replica: Replica,
        operation: Operation,
        step: Step,
        seen: int,
        evict: Collection[ReplicaKey],
        *,
        alone: bool = True,
    ) -> Replica | None:
        """Record that this replica is to be: its row, the operation that loads it, and that those to be
        evicted are unloading, all at once. None when any replica changed after `seen`: look again.

        Conflict when it is to load `alone` and some other replica of its model is staging or loading."""
        ...

    async def move(self, before: Replica, after: Replica, seen: int | None = None) -> Replica | None:
        """Write `after` if the row is still `before` (by its change), and, where that is given, no replica
        has changed after `seen`; None when it is not."""
        ...

    async def remove(self, replica: Replica) -> bool:
        """Forget it, if it is still as it was."""
        ...

    async def touch(self, used: Mapping[ReplicaKey, timedelta]) -> None:
        """They were used so long ago. This is no change, and is not announced."""
        ...


class ReplicaRows(Protocol):
    async def replicas(self) -> Replicas: ...


class ModelStore(Protocol):
    async def models(self) -> Sequence[StoredModel]: ...

    async def put_model(self, model: StoredModel) -> StoredModel:
        """Add it, or replace the configuration of the one of this name, which keeps its manifest. Conflict
        when another's name is the same on a subject."""
        ...

    async def put_new(self, model: StoredModel) -> StoredModel | None:
        """As `put_model`, but None, and nothing is written, where there is a model of this name."""
        ...

    async def remove_model(self, name: str) -> StoredModel:
        """NotFound for one that is not there."""
        ...

    async def note_seen(self, model: StoredModel, seen: SeenFacts) -> None:
        """Write down what the model's file says of itself, unless the configuration is another by now. This
        is no change of the model."""
        ...

    async def describe_model(self, model: StoredModel, manifest: Manifest) -> bool:
        """Give it this manifest, if it still has that of `model`."""
        ...


class ModelEditStore(ModelStore, Protocol):
    async def put_from_file(self, model: StoredModel) -> StoredModel | None:
        """As `put_model`, but for a model that was added by other means: None, and nothing is written."""
        ...

    async def change_model(self, before: StoredModel, after: StoredModel) -> StoredModel | None:
        """Give it another text or origin, if it still has those of `before`; None when it does not."""
        ...

    async def rename_model(self, renaming: Renaming) -> tuple[str, ...] | None:
        """The names of API keys that were limited to the old name, and are now to the new one. None when any
        of the models is no longer as it was. Conflict when the new name is taken."""
        ...


class Frontends(Protocol):
    """Which frontends live, and what each said last of its requests (see router.usage)."""

    async def alive(self) -> Collection[FrontendId]: ...

    def has_seen(self, frontend: FrontendId, change: int) -> bool:
        """It routes by a table that knows this change."""
        ...

    def in_flight(self, frontend: FrontendId, key: ReplicaKey) -> int: ...


class WorkerCommands(Protocol):
    """A worker, over the bus. NodeUnreachable, PeerFailed and BusUnusable as the bus raises them."""

    async def install(self, node: NodeId, request: BackendInstall) -> BackendInstallReply: ...

    async def stop(self, node: NodeId, request: ModelStop) -> ModelStopReply: ...

    async def stop_unheard(self, node: NodeId, key: ReplicaKey) -> None:
        """Whatever process it started under this key, whose address never arrived. Nothing answers."""
        ...

    async def running(self, node: NodeId) -> ModelsRunningReply: ...

    async def installed(self, node: NodeId) -> BackendListReply: ...


class FileCommands(Protocol):
    """The same, for the files of models."""

    async def fetch_files(self, node: NodeId, request: FilesFetch) -> FilesFetchReply: ...

    async def drop_files(self, node: NodeId, request: FilesDrop) -> FilesDropReply: ...


class FilePush(Protocol):
    """Of files to workers that do not fetch for themselves; and a look at what workers have."""

    async def sha256(self, node: Node, path: str, size: int) -> str:
        """Of a file in the node's folder of models, which its worker reads if it has to. PeerFailed when the
        file is not there any more, or has another size."""
        ...

    async def push(
        self, node: Node, model: str, local: Path, file: WantedFile, on_size: Callable[[int], None]
    ) -> str:
        """Have the file on the node; the path that it has there. `on_size` gets how much of it is."""
        ...


class ChangeEvent(Protocol):
    async def wait(self) -> None: ...


class RoutingTable(Protocol):
    """What this frontend's requests are routed by, as those see it who write replicas and models."""

    def rows_changed(self) -> None:
        """Replicas or models were written here: it is read again soon, on every frontend. Never waits."""
        ...

    async def refresh(self) -> None:
        """It is at least as new as this call when it returns. Raises what the store raises."""
        ...

    def routable(self, model: str) -> bool:
        """Whether there is a replica of it, though requests may have to wait a moment for it."""
        ...

    @property
    def next_change(self) -> ChangeEvent:
        """Set by the next table: take it before looking, and none is missed."""
        ...


class LoadProgress(Protocol):
    """How far loads are that this frontend carries out."""

    def moved(self, step: Step) -> float:
        """How far its bytes are, as heard from its worker: it only matters whether this grows."""
        ...

    def enter(self, step: Step, phase: str) -> None:
        """It has come to something that its worker does not tell of."""
        ...


class StoredFiles(Protocol):
    """Object storage, as the frontends' store."""

    async def address(self, model: str, file: NeededFile) -> str:
        """Where a worker can read this very file for some minutes; empty: it is not there."""
        ...


class HashingProgress(Protocol):
    def moved(self, step: Step) -> float:
        """As above."""
        ...

    def tell(self, step: Step, event: InstallProgress) -> None:
        """How far it is with what this frontend does for it."""
        ...


class NodeHistory(Protocol):
    async def note_lost(self, node_id: NodeId, replica: str, why: str, instance: str = "") -> None:
        """A replica there is gone without being unloaded; with what is known."""
        ...


class OutOfReach(Protocol):
    def nodes_out_of_reach(self) -> Mapping[NodeId, str]:
        """Nodes that this frontend cannot reach now, each with the reason."""
        ...


class WorkerHttp(Protocol):
    """A worker's HTTP server: a second way to ask it, apart from the bus."""

    async def running(self, server: ReplicaEndpoint) -> ModelsRunningReply | None:
        """None: it runs a release that cannot be asked this way. NodeUnreachable when it does not answer."""
        ...

    async def answers(self, server: ReplicaEndpoint) -> bool:
        """Whether anything answers there in time, a LocalAI worker included, whatever it says."""
        ...


class ReplicaEngine(Protocol):
    """A backend's process, as the code that loads a model sees it."""

    async def load(self, endpoint: ReplicaEndpoint, model: ModelConfig, place: Place) -> None:
        """LoadModel, or for one that speaks HTTP: wait until it answers. BackendFailed with its own words."""
        ...

    async def healthy(self, endpoint: ReplicaEndpoint) -> bool | None:
        """Whether it answers; None: busy or out of reach, which is not dead."""
        ...
