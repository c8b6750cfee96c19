"""What accounts need of storage."""

from collections.abc import Callable, Sequence
from typing import Protocol

from remuda.accounts.keys import ApiKey


class KeyStore(Protocol):
    async def keys(self) -> Sequence[ApiKey]:
        """All keys in force, by name."""
        ...

    async def add_key(self, key: ApiKey) -> None:
        """Conflict when a key of that name is in force."""
        ...

    async def revoke_key(self, key_id: str) -> ApiKey:
        """NotFound for one that is not in force."""
        ...


class SecretStore(Protocol):
    """Cluster secrets: made once, then the same for every frontend on this database."""

    async def secret(self, name: str, make: Callable[[], str]) -> str:
        """The secret of that name; `make` is used only by the first frontend to ask."""
        ...
