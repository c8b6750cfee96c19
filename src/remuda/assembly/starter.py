"""The starter model: with the first `remuda up` of a fresh data folder a small one is installed, by an
ordinary operation and in the background, so that there is something to chat with. Removed, it stays removed.
"""

from typing import Final

import structlog

from remuda.core.errors import RemudaError
from remuda.model_installs.ports import InstalledModels
from remuda.model_installs.service import InstallRequest, ModelInstalls
from remuda.ops.ports import Filter, OpStore
from remuda.ops.progress import Status, summarise
from remuda.store.accounts import SqlSecretStore

log = structlog.get_logger(__name__)

STARTER: Final = "smollm2-135m-instruct"
_BY: Final = "remuda up"
_DECIDED: Final = (
    "starter_model"  # Kept with the cluster's secrets: what was decided once, for all frontends.
)
_ONCE: Final = "starter-model"
_CHAT: Final = "talk to it with: remuda chat"


class StarterModel:
    def __init__(
        self, secrets: SqlSecretStore, operations: OpStore, models: InstalledModels, installs: ModelInstalls
    ) -> None:
        self._secrets = secrets
        self._operations = operations
        self._models = models
        self._installs = installs

    async def offer(self, *, wanted: bool) -> str:
        """The name of the starter model, if it is being installed since just now; else empty. Decided once
        for a database, and only where it is unused so far."""
        try:
            fresh = wanted and await self._is_fresh()
            if fresh:  # First: who dies after this has asked, and asks for the same operation again.
                await self._installs.install(InstallRequest(STARTER, by=_BY, idempotency_key=_ONCE))
            answer = "installed" if fresh else "not wanted"
            await self._secrets.secret(_DECIDED, lambda: answer)
        except RemudaError as error:  # Everything else works without it.
            log.warning("starter_model_not_installed", reason=error.message)
            return ""
        return STARTER if fresh else ""

    async def state(self) -> str:
        """In words, for a person who has just seen it begin. Raises what the store does."""
        if any(model.name == STARTER for model in await self._models.models()):
            return f"is installed; {_CHAT}"
        views = await self._operations.views(Filter(limit=1, dismissed=True, model=STARTER))
        if any(view.operation.finished_at is not None for view in views):
            return "could not be installed; remuda ops says why"
        if any(summarise(view.operation, view.steps, {}).status is Status.RETRYING for view in views):
            return "could not be downloaded yet and is tried again; remuda ops says why"
        return f"is being downloaded; {_CHAT}"

    async def _is_fresh(self) -> bool:
        undecided = await self._secrets.held(_DECIDED) is None
        if not undecided or await self._models.models():
            return False
        known = await self._operations.views(Filter(limit=2, dismissed=True))
        return all(view.operation.idempotency_key == _ONCE for view in known)
