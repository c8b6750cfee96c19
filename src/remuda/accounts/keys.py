"""API keys: how they look, what is kept of them (never the key itself), how one is recognised."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from remuda.core.entropy import Entropy

PREFIX = "rmd_"
_SHOWN_CHARS = 8


class Role(StrEnum):
    ADMIN = "admin"  # Everything.
    USER = "user"  # Inference only.


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    name: str
    role: Role
    digest: str  # SHA-256, hex. The key is random and long, so a slow hash would protect nothing more.
    hint: str  # Its first characters, so that a person can tell keys apart.
    created_at: datetime
    models: tuple[str, ...] = ()  # What it may ask for; empty: all models.


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def mint(name: str, role: Role, entropy: Entropy, now: datetime) -> tuple[str, ApiKey]:
    """A new key: the secret to show once, and what to keep."""
    secret = PREFIX + entropy.token()
    kept = ApiKey(entropy.uuid(), name, role, digest(secret), secret[:_SHOWN_CHARS], now)
    return secret, kept


def recognise(secret: str, keys: Iterable[ApiKey]) -> ApiKey | None:
    """The key this secret belongs to. Digests are compared, so timing tells nothing about a key."""
    wanted = digest(secret)
    return next((key for key in keys if key.digest == wanted), None)
