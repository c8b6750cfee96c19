"""API keys: how they look, what is kept of them, which is never the key itself, and those held in memory,
so that no request waits for SQL; kept up to date by each change made here and, for those made elsewhere, by
timer.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from remuda.accounts.terms import KeyTerms
from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import RemudaError
from remuda.core.events import Notifier
from remuda.core.hints import pasted

log = structlog.get_logger()

PREFIX = "rmd_"
_SHOWN_CHARS = 8


class KeyScope(StrEnum):
    """What a key is for."""

    ADMIN = "admin"  # Everything.
    READ = "read"  # To see what an admin sees, but for secrets, and to change nothing.
    INFERENCE = "inference"


class KeyState(StrEnum):
    """Whether a key opens anything."""

    ACTIVE = "active"
    PAUSED = "paused"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    name: str
    scope: KeyScope
    digest: str  # SHA-256, hex. The key is random and long, so a slow hash would protect nothing more.
    hint: str  # Its first characters, so that a person can tell keys apart.
    created_at: datetime
    models: tuple[str, ...] = ()  # What it may ask for; empty: all models.
    terms: KeyTerms = field(default_factory=KeyTerms)
    paused: bool = False
    last_used_at: datetime | None = None  # To within a few seconds; None: never.

    def state(self, now: datetime) -> KeyState:
        if self.terms.expires_at is not None and self.terms.expires_at <= now:
            return KeyState.EXPIRED
        return KeyState.PAUSED if self.paused else KeyState.ACTIVE


def digest(secret: str) -> str:
    """By which a key is looked up, so that timing tells nothing about the key."""
    return hashlib.sha256(secret.encode()).hexdigest()


def mint(
    name: str,
    scope: KeyScope,
    entropy: Entropy,
    now: datetime,
    models: tuple[str, ...] = (),
    terms: KeyTerms | None = None,
) -> tuple[str, ApiKey]:
    """A new key: the secret to show once, and what to keep."""
    secret = PREFIX + entropy.token()
    hint = secret[:_SHOWN_CHARS]
    kept = ApiKey(entropy.uuid(), name, scope, digest(secret), hint, now, models, terms or KeyTerms())
    return secret, kept


class KeyStore(Protocol):
    async def keys(self) -> Sequence[ApiKey]:
        """All keys that were not revoked, by name."""
        ...

    async def add_key(self, key: ApiKey) -> None:
        """Conflict when there is a key of that name that was not revoked."""
        ...

    async def edit_key(self, key_id: str, change: Callable[[ApiKey], ApiKey]) -> ApiKey:
        """The key as `change`, which only computes, made it: its models, its terms, and whether it is paused.
        NotFound for one that was revoked."""
        ...

    async def keys_used(self, key_ids: Collection[str]) -> None:
        """They were used just now."""
        ...

    async def revoke_key(self, key_id: str) -> ApiKey:
        """NotFound for one that was revoked before."""
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
        self._used: set[str] = set()
        self._hold(())

    async def refresh(self) -> None:
        async with self._changing:
            self._hold(await self._store.keys())

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        try:
            await self._keep_up()
        finally:
            with anyio.move_on_after(limits.STORE_PING_S, shield=True):
                try:
                    await self.note_used()
                except RemudaError as error:
                    log.warning("use_of_keys_not_noted", reason=error.message)

    async def _keep_up(self) -> None:
        noted_s = self._clock.monotonic()
        while True:
            await anyio.sleep(limits.KEYS_REFRESH_EVERY_S)
            try:
                await self.refresh()
                if self._clock.monotonic() - noted_s >= limits.KEYS_USED_EVERY_S:
                    noted_s = self._clock.monotonic()
                    await self.note_used()
            except RemudaError as error:  # The keys known so far go on working.
                log.warning("keys_not_refreshed", reason=error.message)
                self._hold(self._keys)  # Some may have expired.

    async def note_used(self) -> None:
        """Write down which keys were used since the last time."""
        used, self._used = self._used, set()
        if not used:
            return
        try:
            await self._store.keys_used(used)
        except RemudaError:
            self._used |= used
            raise

    def holder(self, secret: str) -> ApiKey | None:
        """Whose key this is; None where it is not an active key."""
        return self._in_use(self._by_digest.get(digest(secret)) if secret else None)

    def by_id(self, key_id: str) -> ApiKey | None:
        """None where it is not an active key."""
        return self._in_use(self._by_id.get(key_id))

    def _in_use(self, key: ApiKey | None) -> ApiKey | None:
        """None where it has expired since the keys were last looked at."""
        if key is None or key is self._local:
            return key
        if key.terms.expires_at is not None and key.terms.expires_at <= self._clock.now():
            return None
        self._used.add(key.id)
        return key

    def trouble(self, secret: str) -> str:
        """Why a key that was made here opens nothing now; empty: it does, or it is no key of ours."""
        key, state = self._named_by(secret)
        if key is None or state is KeyState.ACTIVE:
            return ""
        return f"the key {key.name!r} {'is paused' if state is KeyState.PAUSED else 'has expired'}"

    def remedy(self, secret: str) -> str:
        """What makes it open something again; empty where there is no `trouble`."""
        key, state = self._named_by(secret)
        if key is None or state is KeyState.ACTIVE:
            return ""
        if state is KeyState.PAUSED:
            return f"an admin resumes it with: remuda keys resume {pasted(key.name)}"
        return f"an admin gives it more time with: remuda keys edit {pasted(key.name)} --expires 30d"

    def _named_by(self, secret: str) -> tuple[ApiKey | None, KeyState]:
        known = digest(secret) if secret else ""
        key = next((key for key in self._keys if key.digest == known), None)
        return key, KeyState.ACTIVE if key is None else key.state(self.now())

    def now(self) -> datetime:
        """By which keys expire."""
        return self._clock.now()

    @property
    def changed(self) -> anyio.Event:
        """Set when keys are made, revoked, paused or resumed, or expire, or sessions end. Take it before
        looking, and none is missed."""
        return self._changes.changed

    def sessions_ended(self) -> None:
        """What was let in for a key may have to be looked at again."""
        self._changes.notify()

    def listed(self) -> Sequence[ApiKey]:
        return self._keys

    async def create(
        self, name: str, scope: KeyScope, models: tuple[str, ...] = (), terms: KeyTerms | None = None
    ) -> tuple[str, ApiKey]:
        """The secret is shown to its first reader and kept nowhere."""
        secret, key = mint(name, scope, self._entropy, self._clock.now(), models, terms)
        async with self._changing:
            await self._store.add_key(key)
            self._hold((*self._keys, key))
        return secret, key

    async def edit(self, key_id: str, change: Callable[[ApiKey], ApiKey]) -> ApiKey:
        """In force here when this returns, elsewhere within a second."""
        async with self._changing:
            edited = await self._store.edit_key(key_id, change)
            self._hold([edited if key.id == key_id else key for key in self._keys])
        return edited

    async def revoke(self, key_id: str) -> ApiKey:
        """From now on this key opens nothing here."""
        async with self._changing:
            revoked = await self._store.revoke_key(key_id)
            self._hold([key for key in self._keys if key.id != key_id])
        return revoked

    def _hold(self, keys: Sequence[ApiKey]) -> None:
        self._keys = keys
        now = self._clock.now()
        active = [key for key in keys if key.state(now) is KeyState.ACTIVE]
        self._by_digest = {key.digest: key for key in (*active, self._local)}
        by_id = {key.id: key for key in (*active, self._local)}
        if by_id.keys() != self._by_id.keys():
            self._by_id = by_id
            self._changes.notify()
