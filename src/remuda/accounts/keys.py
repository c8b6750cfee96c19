"""API keys: how they look, what is kept of them, which is never the key itself, and those held in memory,
so that no request waits for SQL; kept up to date by each change made here and, for those made elsewhere, by
timer.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import RemudaError
from remuda.core.events import Notifier

log = structlog.get_logger()

PREFIX = "rmd_"
_SHOWN_CHARS = 8


class KeyScope(StrEnum):
    """What a key is for."""

    ADMIN = "admin"  # Everything.
    READ = "read"  # To see what an admin sees, but for secrets, and to change nothing.
    INFERENCE = "inference"


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    name: str
    scope: KeyScope
    digest: str  # SHA-256, hex. The key is random and long, so a slow hash would protect nothing more.
    hint: str  # Its first characters, so that a person can tell keys apart.
    created_at: datetime
    models: tuple[str, ...] = ()  # What it may ask for; empty: all models.


def digest(secret: str) -> str:
    """By which a key is looked up, so that timing tells nothing about the key."""
    return hashlib.sha256(secret.encode()).hexdigest()


def mint(
    name: str, scope: KeyScope, entropy: Entropy, now: datetime, models: tuple[str, ...] = ()
) -> tuple[str, ApiKey]:
    """A new key: the secret to show once, and what to keep."""
    secret = PREFIX + entropy.token()
    kept = ApiKey(entropy.uuid(), name, scope, digest(secret), secret[:_SHOWN_CHARS], now, models)
    return secret, kept


class KeyStore(Protocol):
    async def keys(self) -> Sequence[ApiKey]:
        """All active keys, by name."""
        ...

    async def add_key(self, key: ApiKey) -> None:
        """Conflict when there is an active key of that name."""
        ...

    async def revoke_key(self, key_id: str) -> ApiKey:
        """NotFound for one that is not active."""
        ...


class SecretStore(Protocol):
    """Cluster secrets: made once, then the same for every frontend on this database."""

    async def secret(self, name: str, make: Callable[[], str]) -> str:
        """The secret of that name; `make` is used only by the first frontend to ask."""
        ...


class KeyRing:
    """`local` is a key of this process alone: written to the data folder for commands on this machine."""

    def __init__(self, store: KeyStore, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._changing = anyio.Lock()  # Else a slow refresh could bring back a key revoked meanwhile.
        self.local_secret, self._local = mint("local", KeyScope.ADMIN, entropy, clock.now())
        self._changes = Notifier()
        self._by_id: dict[str, ApiKey] = {}
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

    def by_id(self, key_id: str) -> ApiKey | None:
        """None where it is not an active key."""
        return self._by_id.get(key_id)

    @property
    def changed(self) -> anyio.Event:
        """Set when keys are made or revoked. Take it before looking, and none is missed."""
        return self._changes.changed

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
        by_id = {key.id: key for key in (*keys, self._local)}
        if by_id.keys() != self._by_id.keys():
            self._by_id = by_id
            self._changes.notify()
