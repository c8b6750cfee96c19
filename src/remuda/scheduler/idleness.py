"""When a replica that nobody asks for is unloaded. Pure."""

from datetime import datetime, timedelta

from remuda.models.config import ModelConfig
from remuda.scheduler.model import Replica


def unloads_at(replica: Replica, config: ModelConfig | None, usual: timedelta) -> datetime | None:
    """None: never. A model's own `keep_alive` counts before the usual one; zero means for ever."""
    if config is None or config.pinned:
        return None
    keep = usual if config.keep_alive is None else config.keep_alive
    since = max(filter(None, (replica.last_used, replica.updated_at)), default=None)
    return since + keep if keep and since is not None else None
