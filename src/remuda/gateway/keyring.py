"""API keys held in memory, so that no request waits for SQL; kept
up to date by each change made here and, for those made elsewhere, by timer."""

from collections.abc import Sequence

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.accounts.keys import ApiKey, KeyScope, digest, mint
from remuda.accounts.ports import KeyStore
from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import RemudaError

log = structlog.get_logger()


class KeyRing:
    """`local` is a key of this process alone: written to the data folder for commands on this machine."""

    def __init__(self, store: KeyStore, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._changing = anyio.Lock()  # Else a slow refresh could bring back a key revoked meanwhile.
        self.local_secret, self._local = mint("local", KeyScope.ADMIN, entropy, clock.now())
        self._hold(())

    async def refresh(self) -> None:
        async with self._changing:
            self._hold(await self._store.keys())

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await anyio.sleep(limits.KEYS_REFRESH_EVERY_S)
            try:
                await self.refresh()
            except RemudaError as error:  # The keys known so far go on working.
                log.warning("keys_not_refreshed", reason=error.message)

    def holder(self, secret: str) -> ApiKey | None:
        """Whose key this is; None where it is not an active key."""
        return self._by_digest.get(digest(secret)) if secret else None

    def listed(self) -> Sequence[ApiKey]:
        return self._keys

    async def create(self, name: str, scope: KeyScope, models: tuple[str, ...] = ()) -> tuple[str, ApiKey]:
        """The secret is shown to its first reader and kept nowhere."""
        secret, key = mint(name, scope, self._entropy, self._clock.now(), models)
        async with self._changing:
            await self._store.add_key(key)
            self._hold((*self._keys, key))
        return secret, key

    async def revoke(self, key_id: str) -> ApiKey:
        """From now on this key opens nothing here."""
        async with self._changing:
            revoked = await self._store.revoke_key(key_id)
            self._hold([key for key in self._keys if key.id != key_id])
        return revoked

    def _hold(self, keys: Sequence[ApiKey]) -> None:
        self._keys = keys
        self._by_digest = {key.digest: key for key in (*keys, self._local)}
