"""What the fleet needs of storage and of the bus. The callables run inside one transaction: they must be
pure, and what they raise rolls it back and reaches the caller."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.admission import Beat, HeartbeatOutcome
from remuda.fleet.health import Fleet
from remuda.fleet.model import CommandProbe, Dial, HistoryEntry, Node, NodeType
from remuda.fleet.registration import Decision, Pending, Supersede

OFFLINE: Final = "offline"  # Events of a node's history: an outage, and its end.
ONLINE: Final = "online"


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


@dataclass(frozen=True, slots=True)
class KnownName:
    """What is known of a name. The fleet carries `now` and the hearing; its nodes are not filled in."""

    node: Node | None
    fleet: Fleet
    invite: str = ""  # The nonce of the invite in force; empty: there is none.
    pending: Sequence[Pending] = ()  # Nodes that wait for approval; only where `node` is None.
    names: Sequence[str] = ()  # Of all nodes and invites; only where `node` is None.


class FleetStore(Protocol):
    async def register(self, name: str, decide: Callable[[KnownName], Decision]) -> Decision:
        """Carry out what `decide` makes of what is known of that name, and answer it. What happened to nodes
        is noted in the history."""
        ...

    async def supersede(
        self, claim_id: NodeId, decide: Callable[[Node, Fleet], Supersede], note: Note
    ) -> Supersede:
        """Carry out what `decide` makes of the node that holds the claim of this id; NotFound."""
        ...

    async def invite(self, name: str, nonce: str, note: Note) -> str:
        """Write down that a peer of this name is invited. Answers the nonce in force, which is an earlier
        invite's if there is one. Conflict where the name is a node's that no invite could take it from, and
        what `new_name_problem` says of a name that no node has."""
        ...

    async def withdraw_invite(
        self,
        name: str,
        change: Callable[[Node], Node],
        keys_of: Callable[[NodeId], Sequence[str]],
        note: Note,
    ) -> Node | None:
        """Delete the invite and change the node of that name. Where that makes a difference, remember the
        node's bus keys as revoked and answer the changed node. NotFound where no node of that name was
        invited."""
        ...

    async def amend(self, node_id: NodeId, change: Callable[[Node], Node], note: Note | None = None) -> Node:
        """Write the changed node and the note in one transaction; NotFound. `change` is given the node with
        `updated_at` fresh: that is the time now."""
        ...

    async def remove(self, node_id: NodeId, note: Note, revoke: Sequence[str] = ()) -> Node:
        """Delete the node with all that hangs on it, its invite included; keep history by name and remember
        revoked bus keys."""
        ...

    async def beat(self, beats: Sequence[Beat]) -> Sequence[HeartbeatOutcome]:
        """Take in heartbeats, all in one transaction; answers for each of them what became of it."""
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

    async def record_probes(self, probes: Sequence[CommandProbe]) -> None: ...

    async def note_outages(self, notes: Sequence[tuple[NodeId, Note]]) -> None:
        """Write those notes, of the events `offline` and `online`, that say something else than the last one
        of their node. A node is `online` again only after an outage that was noted."""
        ...

    async def history(self, node_name: str | None, limit: int) -> Sequence[HistoryEntry]:
        """The latest entries, newest first."""
        ...

    async def revoked(self) -> dict[str, datetime]:
        """Bus keys of removed nodes and when they were revoked."""
        ...


class CredentialIssuer(Protocol):
    """Mints bus credentials for nodes. None where the bus needs none, or this frontend may not mint."""

    def mint(self, node_type: NodeType, node_id: NodeId, now: datetime) -> BusCredentials | None: ...

    def public_key(self, node_id: NodeId) -> str | None:
        """The key to revoke when the node is removed."""
        ...

    async def revoke(self, keys: dict[str, datetime]) -> None:
        """Make the bus refuse these keys from now on, where that is in our hands."""
        ...


class StopSender(Protocol):
    async def stop(self, node_id: NodeId) -> None:
        """Ask the worker to shut down in an orderly way; it is not confirmed."""
        ...


class ReportSignal(Protocol):
    def notify(self) -> None:
        """A node has reported something new about itself: who goes by reports looks again. Never waits."""
        ...
