"""What is true in the simulated world, written down as it happens and apart from the code under test."""

from dataclasses import dataclass, field

from remuda.core import limits
from remuda.core.ids import BootId, NodeId
from remuda.fleet.ports import Note
from tests.support.clocks import elapsed_s
from tests.support.fleet_tables import NodeRow


@dataclass(frozen=True, slots=True)
class Write:
    """One transaction that was committed: by which method of the store, and what it said it was about."""

    kind: str
    note: Note | None = None
    node_id: NodeId | None = None

    def amends(self, event: str) -> bool:
        """Whether it is the change that the history calls by this name."""
        return self.kind == "amend" and self.note is not None and self.note.event == event

    def __str__(self) -> str:
        return f"{self.kind} {self.note.event if self.note else ''} {self.node_id or ''}".strip()


@dataclass(frozen=True, slots=True)
class Moment:
    """True time and what had happened to hearing by then."""

    at_s: float
    deaf_s: float  # In all, until then, with nobody able to hear.
    outages: int
    clock_forward_s: float  # By how much in all the database's clock was set forward.


@dataclass(slots=True)
class Hearing:
    """Whether any frontend can hear at all: a frontend, the store and the bus are up and reach each other."""

    deaf_s: float = 0.0
    outages: int = 0
    clock_forward_s: float = 0.0
    clock_back_at_s: float = -60.0
    clock_back_s: float = 0.0
    era: int = 0  # Spans of two eras cannot be compared: the clock was set back between them.
    _era_ends: bool = False
    _deaf_since_s: float | None = 0.0

    def now(self) -> Moment:
        running = 0.0 if self._deaf_since_s is None else elapsed_s() - self._deaf_since_s
        return Moment(elapsed_s(), self.deaf_s + running, self.outages, self.clock_forward_s)

    def becomes(self, *, able: bool) -> None:
        if able and self._deaf_since_s is not None:
            self.deaf_s += elapsed_s() - self._deaf_since_s
            self._deaf_since_s = None
        elif not able and self._deaf_since_s is None:
            self._deaf_since_s = elapsed_s()
            self.outages += 1

    def clock_stepped(self, by_s: float) -> None:
        if by_s < 0:
            self.clock_back_at_s, self.clock_back_s = elapsed_s(), -by_s
            self.era += 1
            self._era_ends = True
        # A longer step is seen to be one, and no time is counted for it.
        self.clock_forward_s += min(max(by_s, 0.0), limits.LIVENESS_GAP_MAX_S)

    def proved(self) -> None:
        """A frontend wrote that it can hear, and on that occasion sorted out what the clock had mixed up."""
        self.era += self._era_ends
        self._era_ends = False

    def silence_most_s(self, since: Moment) -> float:
        """The longest silence that may be held against a node last heard at that moment.

        An outage that begins and ends between two proofs goes unnoticed: so much of it may be counted. So is
        the time by which the clock was set back just before an outage.
        """
        now = self.now()
        deaf_s = now.deaf_s - since.deaf_s
        unnoticed_s = limits.LIVENESS_EVERY_S * (now.outages - since.outages + (deaf_s > 0))
        forward_s = now.clock_forward_s - since.clock_forward_s
        back_lately = self.clock_back_at_s > since.at_s - limits.LIVENESS_GAP_MAX_S
        back_s = self.clock_back_s if deaf_s > 0 and back_lately else 0.0
        return now.at_s - since.at_s - deaf_s + unnoticed_s + forward_s + back_s + 1.0


@dataclass(slots=True)
class Ledger:
    own_secrets: frozenset[str]
    auto_approve: bool
    offline_after_s: float
    hearing: Hearing = field(default_factory=Hearing)
    intents: set[tuple[str, NodeId, str]] = field(default_factory=set)
    heard: dict[NodeId, Moment] = field(default_factory=dict)
    heard_count: dict[NodeId, int] = field(default_factory=dict)
    sequences: dict[tuple[NodeId, BootId], int] = field(default_factory=dict)
    removed: set[NodeId] = field(default_factory=set)
    farewells: set[tuple[NodeId, BootId | None]] = field(default_factory=set)  # None: it tells no boot.

    def intend(self, event: str, node_id: NodeId, value: str = "") -> None:
        """An admin asks for this. It may be done later, or never, or twice."""
        self.intents.add((event, node_id, value))

    def intended(self, event: str, node_id: NodeId, value: str = "") -> bool:
        return (event, node_id, value) in self.intents

    def trusts(self, row: NodeRow) -> bool:
        return self.auto_approve or row.secret_hash in self.own_secrets

    def sign_of_life(self, node_id: NodeId) -> None:
        self.heard[node_id] = self.hearing.now()
        self.heard_count[node_id] = self.heard_count.get(node_id, 0) + 1
