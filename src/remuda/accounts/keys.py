"""API keys: how they look, and what is kept of them, which is never the key itself."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from remuda.core.entropy import Entropy

PREFIX = "rmd_"
_SHOWN_CHARS = 8


class KeyScope(StrEnum):
    """What a key is for."""

    ADMIN = "admin"  # Everything.
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
