"""What installs and removals of models need of hubs, the store and the rest of a frontend."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from remuda.hubs.model import AskRoom, RemoteFile, Resolved
from remuda.models.source_refs import HubModel, ModelSource
from remuda.oci.blobs import BlobStore, OnBytes
from remuda.ops.model import OpId, Step
from remuda.scheduler.model import StoredModel
from remuda.wire.backends import InstallProgress


class ModelHub(Protocol):
    """Where model files come from."""

    async def resolve(self, source: ModelSource, room: AskRoom) -> Resolved:
        """What the source stands for now."""
        ...

    async def snapshot(self, source: HubModel) -> Resolved:
        """All files of a repository, as they are now."""
        ...

    async def fetch(self, file: RemoteFile, blobs: BlobStore, on_bytes: OnBytes) -> str:
        """Have the file in the blob store, and answer its digest. Goes on where an earlier life was."""
        ...


class InstalledModels(Protocol):
    async def models(self) -> Sequence[StoredModel]: ...

    async def put_installed(
        self, model: StoredModel, before: StoredModel | None, op: OpId, attempt: int
    ) -> StoredModel | None:
        """Add the model with its manifest, or give the one of its name these, as the outcome of this attempt.
        None when the attempt is over, or its operation is not wanted any more: nothing is written then.
        Conflict if the model of this name is not the one that was found there before."""
        ...

    async def remove_written(self, name: str, written_at: str) -> StoredModel | None:
        """Forget the model if it was written then; None: it is not there, or is another one by now."""
        ...


class ProgressTeller(Protocol):
    async def tell(self, step: Step, event: InstallProgress) -> None:
        """How far this attempt is, for those who watch on any frontend. Best effort."""
        ...


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """What is to serve a model. `warning`: what people should know about it."""

    backend: str
    warning: str = ""


ChooseBackend = Callable[[Sequence[str]], Awaitable[BackendChoice]]
"""Given the backends that could serve a model, best first; none for models that need no choice."""


class ModelTable(Protocol):
    def rows_changed(self) -> None: ...
