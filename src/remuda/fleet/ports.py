"""What the fleet needs of storage and of the bus. The callables run inside one transaction: they must be
pure, and what they raise rolls it back and reaches the caller."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.admission import Beat
from remuda.fleet.fleet import Fleet
from remuda.fleet.model import Dial, HistoryEntry, Node, NodeType


@dataclass(frozen=True, slots=True)
class Note:
    """What to write into the history along with a change."""

    event: str
    detail: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True)
class BusCredentials:
    jwt: str = field(repr=False)
    seed: str = field(repr=False)
    expires_at: datetime


class FleetStore(Protocol):
    async def register(self, name: str, decide: Callable[[Node | None, Fleet], Node]) -> Node:
        """Write what `decide` makes of the node of that name (None: not known).

        The Fleet given carries `now` and the hearing; its nodes are not filled in. A new node and a new
        boot are noted in the history.
        """
        ...

    async def amend(self, node_id: NodeId, change: Callable[[Node], Node], note: Note | None = None) -> Node:
        """Write the changed node, `updated_at` fresh, and the note in one transaction; NotFound."""
        ...

    async def remove(self, node_id: NodeId, note: Note, revoke: Sequence[str] = ()) -> Node:
        """Delete the node with all that hangs on it; keep history by name and remember revoked bus keys."""
        ...

    async def beat(self, beats: Sequence[Beat]) -> frozenset[NodeId]:
        """Take in heartbeats, all in one transaction; answers whose senders have to register (again): the
        node is unknown, or the heartbeat does not speak for it."""
        ...

    async def fleet(self) -> Fleet: ...

    async def one(self, node_id: NodeId) -> Fleet:
        """A snapshot that holds just this node; NotFound for an unknown id."""
        ...

    async def listen(self, frontend: FrontendId, *, resumed: bool) -> None:
        """This frontend can hear the fleet now; `resumed`: but could not all the time since its last call."""
        ...

    async def frontends(self) -> frozenset[FrontendId]:
        """Those that listen now, or did until a moment ago."""
        ...

    async def record_dials(self, dials: Sequence[Dial]) -> None: ...

    async def history(self, node_name: str | None, limit: int) -> Sequence[HistoryEntry]:
        """The latest entries, newest first."""
        ...

    async def revoked(self) -> dict[str, datetime]:
        """Bus keys of removed nodes and when they were revoked."""
        ...


class CredentialIssuer(Protocol):
    """Mints bus credentials for nodes. None where the bus needs none, or nobody here may mint."""

    def mint(self, node_type: NodeType, node_id: NodeId, now: datetime) -> BusCredentials | None: ...

    def public_key(self, node_id: NodeId) -> str | None:
        """The key to revoke when the node is removed."""
        ...

    async def revoke(self, keys: dict[str, datetime]) -> None:
        """Make the bus refuse these keys from now on, where that is in our hands."""
        ...


class StopSender(Protocol):
    async def stop(self, node_id: NodeId) -> None:
        """Ask the worker to shut down in an orderly way; nobody confirms it."""
        ...
