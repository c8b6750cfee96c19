"""What this frontend routes by: an immutable picture, replaced as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from remuda.core.ids import NodeId, ReplicaKey
from remuda.inference.model import Endpoint
from remuda.models.config import ModelConfig

RouteId = tuple[ReplicaKey, int]


@dataclass(frozen=True, slots=True)
class Route:
    """A replica that may be chosen: loaded, of the present configuration, on a node that takes work."""

    key: ReplicaKey
    node: NodeId
    node_name: str
    endpoint: Endpoint
    instance: str = ""
    change: int = 0  # Of its row: after another load at the same place it is another route.
    parallel: int = 0  # How many requests it takes at once; 0: nobody knows.
    vram_free: int = 0
    silent: bool = False  # Its node is overdue: others are preferred.
    worker: Endpoint | None = None  # The HTTP server of the worker that runs it.

    @property
    def id(self) -> RouteId:
        """What stays the same while figures about it change."""
        return self.key, self.change


@dataclass(frozen=True, slots=True)
class Entry:
    """A configured model. `listed`: its bytes are somewhere, or it is loaded."""

    config: ModelConfig
    routes: tuple[Route, ...] = ()
    listed: bool = False
    created: int = 0  # Unix seconds, for /v1/models.
    context: int = 0  # Tokens that it is loaded for; 0: not known here.


@dataclass(frozen=True, slots=True)
class Table:
    models: Mapping[str, Entry] = field(default_factory=lambda: MappingProxyType({}))
    change: int = 0  # The newest change of replicas that it knows.
