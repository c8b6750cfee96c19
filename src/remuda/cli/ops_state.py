"""The state of operations as a frontend's events describe it. Pure: state and event in, next state out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from remuda.core.sse import SseEvent
from remuda.gateway.attention import FRONTENDS
from remuda.wire.codec import decode
from remuda.wire.operations import OpView, StepView, Tick

AT_WORK: Final = ("running", "stopping")
_OVER: Final = ("succeeded", "failed", "skipped", "cancelled")
_BYTES_MAX: Final = 64 << 20
_SHORT_ID_CHARS: Final = 8


@dataclass(frozen=True, slots=True)
class Picture:
    ops: Mapping[str, OpView] = field(default_factory=dict)
    only: frozenset[str] | None = None  # Other operations are of no interest.

    def after(self, event: SseEvent) -> "Picture":
        """The very same where nothing has changed. Rejected for what cannot be read; events of kinds that
        are not known change nothing."""
        match event.name:
            case "snapshot":
                return replace(self, ops={})
            case "op":
                return self._with(decode(OpView, event.data.encode(), bytes_max=_BYTES_MAX))
            case "progress":
                return self._ticked(decode(Tick, event.data.encode()))
            case _:
                return self

    def over(self, ids: Iterable[str]) -> bool:
        """Whether all of these have ended."""
        return all((op := self.ops.get(id)) is not None and op.finished_at is not None for id in ids)

    def without_outcomes(self) -> "Picture":
        """Leaves failure reasons out: they are printed once, at the end."""
        return replace(self, ops={id: _without_outcomes(op) for id, op in self.ops.items()})

    def _with(self, operation: OpView) -> "Picture":
        if self.only is not None and operation.id not in self.only:
            return self
        known = self.ops.get(operation.id)
        if not operation.whole and known is not None:
            steps = {step.node_id: step for step in (*(known.steps or ()), *(operation.steps or ()))}
            operation = operation.model_copy(update={"steps": tuple(steps.values()), "whole": True})
        return replace(self, ops={**self.ops, operation.id: operation})

    def _ticked(self, tick: Tick) -> "Picture":
        op = self.ops.get(tick.op)
        if op is None or op.steps is None:
            return self
        steps = tuple(_ticked(step, tick) for step in op.steps)
        return replace(self, ops={**self.ops, op.id: op.model_copy(update={"steps": steps})})


def _ticked(step: StepView, tick: Tick) -> StepView:
    """Progress of an attempt that is over, or of one before it, is no news."""
    at_work = step.state in AT_WORK and step.attempt == tick.attempt
    if step.node_id != tick.node_id or not at_work:
        return step
    return step.model_copy(update={"progress": tick.progress})


def _without_outcomes(op: OpView) -> OpView:
    if op.steps is None:
        return op
    return op.model_copy(update={"steps": tuple(map(_without_outcome, op.steps))})


def _without_outcome(step: StepView) -> StepView:
    over = step.state in _OVER or (step.stage == "roll_back" and step.problem is not None)
    return step.model_copy(update={"reason": "", "problem": None}) if over else step


def short_id(id: str) -> str:
    """As people are shown it; commands take the beginning of an id."""
    return id[:_SHORT_ID_CHARS]


def title(op: OpView) -> str:
    return f"{op.kind.replace('_', ' ')} {op.model or op.backend or op.name or op.uri}"


def by_frontends(op: OpView) -> bool:
    """Whether it concerns no node: frontends carry it out by themselves."""
    return bool(op.steps) and all(step.node_id == FRONTENDS for step in steps_of(op))


def steps_of(op: OpView) -> Sequence[StepView]:
    return op.steps or ()
