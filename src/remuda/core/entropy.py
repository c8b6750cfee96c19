"""Randomness and ids as an argument: the system's in service, a seeded one in tests and simulation."""

import random
import secrets
import uuid
from typing import Protocol


class Entropy(Protocol):
    def uuid(self) -> str:
        """A random UUID (version 4) in its usual 36-character form."""
        ...

    def token(self, size: int = 32) -> str:
        """An unguessable, URL-safe text made of `size` random bytes."""
        ...

    def fraction(self) -> float:
        """A number in 0 <= x < 1, for jitter; not for secrets."""
        ...


class SystemEntropy:
    def uuid(self) -> str:
        return str(uuid.uuid4())

    def token(self, size: int = 32) -> str:
        return secrets.token_urlsafe(size)

    def fraction(self) -> float:
        return random.random()


class SeededEntropy:
    """The same seed gives the same ids and the same jitter. Never for secrets in service."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uuid(self) -> str:
        return str(uuid.UUID(bytes=self._random.randbytes(16), version=4))

    def token(self, size: int = 32) -> str:
        return self._random.randbytes(size).hex()

    def fraction(self) -> float:
        return self._random.random()
