"""What placing one more replica of a model would do now: where, after what, how soon, and why not elsewhere.
Pure. Nothing here guesses: what was not measured is said to be unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from remuda.scheduler.measured_speed import Expected, Rate, RateBook, Took
from remuda.scheduler.model import Need, NodeOffer, Placed, Unplaceable
from remuda.scheduler.placement import not_chosen, place


class PlannedAction(StrEnum):
    UNLOAD = "unload"  # Of a replica that makes room.
    INSTALL = "install"  # Of the backend.
    COPY = "copy"  # Of the model's files.
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class PlannedStep:
    action: PlannedAction
    what: str  # A replica, a backend, whom files come from, or the model.
    size_bytes: int = 0  # 0: not known.
    bytes_per_s: float | None = None  # None: not measured, or not what it is counted in.
    took: Took | None = None  # The same step before, where it is not counted in bytes; None: not measured.

    @property
    def seconds(self) -> float | None:
        """None: not known."""
        if self.took is not None:
            return self.took.seconds
        return self.size_bytes / self.bytes_per_s if self.size_bytes and self.bytes_per_s else None


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """`others`: why each node is not the one, by name, the next best first."""

    need: Need
    placed: Placed | Unplaceable
    node: str = ""  # Its name; empty: no node can take it.
    steps: tuple[PlannedStep, ...] = ()
    speed: Expected | None = None  # None: nothing like it was measured there.
    others: Mapping[str, str] | None = None

    @property
    def known_s(self) -> float:
        """What the steps take of which that is known. Replicas are unloaded at the same time."""
        unloads = [step.seconds or 0.0 for step in self.steps if step.action is PlannedAction.UNLOAD]
        others = (step.seconds or 0.0 for step in self.steps if step.action is not PlannedAction.UNLOAD)
        return max(unloads, default=0.0) + sum(others)

    @property
    def ready_s(self) -> float | None:
        """None: of some step it is not known."""
        return None if any(step.seconds is None for step in self.steps) else self.known_s


def replica_plan(need: Need, offers: Sequence[NodeOffer], speeds: RateBook) -> ReplicaPlan:
    placed, others = place(need, offers), not_chosen(need, offers)
    if isinstance(placed, Unplaceable):
        return ReplicaPlan(need, placed, others=others)
    offer = next(one for one in offers if one.node == placed.node)
    speed = speeds.tokens_per_s(offer.node, need.model, need.backend, need.weights_bytes)
    return ReplicaPlan(need, placed, offer.name, _steps(need, offer, placed, speeds), speed, others)


def _steps(need: Need, offer: NodeOffer, placed: Placed, speeds: RateBook) -> tuple[PlannedStep, ...]:
    def measured(kind: Rate) -> float | None:
        return speeds.bytes_per_s(kind, offer.node, need.model)

    steps = [
        PlannedStep(PlannedAction.UNLOAD, str(key), took=speeds.unload_s(offer.node, key.model))
        for key in placed.evict
    ]
    if offer.copied_from:
        per_s = measured(Rate.COPY)
        steps.append(PlannedStep(PlannedAction.COPY, offer.copied_from, offer.copied_bytes, per_s))
    if not offer.has_backend:
        took = speeds.install_s(offer.node, need.backend)
        steps.append(PlannedStep(PlannedAction.INSTALL, need.backend, took=took))
    per_s = measured(Rate.LOAD)
    return (*steps, PlannedStep(PlannedAction.LOAD, need.model, need.weights_bytes, per_s))
