"""When a replica that nobody asks for is unloaded, and when it is kept after all. Pure."""

from datetime import datetime, timedelta
from typing import Final

from remuda.models.config import ModelConfig
from remuda.scheduler.model import Replica

_FIRST_USE: Final = timedelta(seconds=10)  # Those for whom it was loaded are on their way, on any frontend.
_NOTED_WITHIN: Final = timedelta(seconds=2)  # While it is used, that is written down so often at least.
_NOTED_LEAST: Final = timedelta(seconds=1)
_NOTED_MOST: Final = timedelta(seconds=10)


def unloads_at(replica: Replica, config: ModelConfig | None, usual: timedelta) -> datetime | None:
    """None: never. A model's own `keep_alive` counts before the usual one; less than nothing is for ever.

    Of a replica in use, every frontend that can write says so often enough for this never to be past, however
    short its `keep_alive` and whether or not that frontend is heard on the bus."""
    if config is None or config.pinned:
        return None
    keep = usual if config.keep_alive is None else config.keep_alive
    if keep < timedelta():
        return None
    if replica.last_used is not None:
        return replica.last_used + max(keep, _NOTED_WITHIN)
    return None if replica.updated_at is None else replica.updated_at + max(keep, _FIRST_USE)


def used_since(replica: Replica, asked_at: datetime) -> bool:
    """Whether it was used after its unload was asked for; both are the store's instants."""
    return replica.last_used is not None and replica.last_used > asked_at


def noted_every(keep: timedelta) -> timedelta:
    """How often the use of a replica is written down while it lasts."""
    return _NOTED_MOST if keep < timedelta() else min(max(keep / 4, _NOTED_LEAST), _NOTED_MOST)
