"""Why nodes cannot take a replica; and those of a model that found no place, remembered for its next look.
Pure.

A fleet that is full is asked for room again and again, by all who wait. Most of its nodes stand then as they
stood a second before. A reason is remembered with its grounds, all that it was concluded from, and holds for
as long as these are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from remuda.core.ids import NodeId
from remuda.scheduler.model import Unplaceable

_MODELS_MAX: Final = 16  # Those that were looked at last.


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """`lacks`: how much is missing until it works, by the first condition that is not met. `until`: what is
    waited for, where it works once that has happened."""

    why: str
    waiting_helps: bool = False
    lacks: int = 1
    until: str = ""

    @property
    def rank(self) -> tuple[bool, int]:
        """The smallest is the nearest to working."""
        return not self.waiting_helps, self.lacks


@dataclass(frozen=True, slots=True)
class RefusedNode:
    node: NodeId
    name: str
    approved: bool
    unfit: bool  # It cannot be considered at all.
    refusal: NodeRefusal
    order: tuple[bool, int, str]  # The smallest is the nearest to working.


def refused(node: NodeId, name: str, refusal: NodeRefusal, *, approved: bool, unfit: bool) -> RefusedNode:
    return RefusedNode(node, name, approved, unfit, refusal, (*refusal.rank, name))


def nowhere(nodes: Sequence[RefusedNode]) -> Unplaceable:
    """Of a fleet none of whose nodes fits."""
    nearest_first = sorted(nodes, key=_order)
    soon = next((one for one in nearest_first if one.refusal.until), None)
    return Unplaceable(
        reasons={one.name: one.refusal.why for one in nearest_first},
        # The first node may be about to register.
        waiting_helps=not nodes or any(one.refusal.waiting_helps for one in nodes),
        unapproved=frozenset(one.name for one in nodes if not one.approved),
        room_on=frozenset(one.node for one in nodes if one.refusal.waiting_helps and not one.unfit),
        until="" if soon is None else f"on {soon.name} once {soon.refusal.until}",
    )


def _order(one: RefusedNode) -> tuple[bool, int, str]:
    return one.order


@dataclass(frozen=True, slots=True)
class Grounded:
    """`grounds`: what it was concluded from, beside what all nodes have in common; `holds_until`: time alone
    may change it then. None: nothing does."""

    grounds: object
    holds_until: datetime | None
    refused: RefusedNode


@dataclass(slots=True)
class KnownRefusals:
    """Of one model."""

    common: object = None  # What the reasons of all nodes were concluded from.
    nodes: dict[NodeId, Grounded] = field(default_factory=dict)

    def still(self, node: NodeId, grounds: object, now: datetime) -> Grounded | None:
        known = self.nodes.get(node)
        if known is None or known.grounds != grounds:
            return None
        return known if known.holds_until is None or now < known.holds_until else None


class RefusalBook:
    """Remembers for the models that found no place last."""

    def __init__(self) -> None:
        self._known: dict[str, KnownRefusals] = {}

    @property
    def models(self) -> list[str]:
        return list(self._known)

    def of(self, model: str, common: object) -> KnownRefusals:
        known = self._known.get(model)
        return known if known is not None and known.common == common else KnownRefusals(common)

    def found_place(self, model: str) -> None:
        self._known.pop(model, None)

    def found_none(self, model: str, common: object, nodes: Mapping[NodeId, Grounded]) -> None:
        self._known.pop(model, None)
        self._known[model] = KnownRefusals(common, dict(nodes))
        while len(self._known) > _MODELS_MAX:
            del self._known[next(iter(self._known))]
