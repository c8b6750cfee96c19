"""What is heard at this moment, laid over what is stored. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final, Protocol

from remuda.core.ids import NodeId
from remuda.ops.live_progress import LiveProgress
from remuda.ops.model import OpId, State
from remuda.ops.ports import Progress, View


class Overlay(Protocol):
    def of(self, op: OpId, node: NodeId) -> LiveProgress | None: ...


class _NothingLive:
    def of(self, op: OpId, node: NodeId) -> LiveProgress | None:
        return None


NOTHING_LIVE: Final[Overlay] = _NothingLive()


def overlaid(view: View, overlay: Overlay, now: datetime) -> View:
    """Only attempts at work are touched, and none falls behind what was shown before."""
    heard: Mapping[NodeId, Progress] = dict(view.progress)
    ticks = {
        step.node: _ahead(heard.get(step.node), live.stored(now))
        for step in view.steps
        if step.state is State.RUNNING
        and (live := overlay.of(step.op, step.node)) is not None
        and live.attempt == step.attempt
        and not live.ended
    }
    return replace(view, progress=tuple({**heard, **ticks}.items())) if ticks else view


def _ahead(stored: Progress | None, live: Progress) -> Progress:
    if stored is None or stored.attempt != live.attempt or stored.fraction <= live.fraction:
        return live
    return replace(live, fraction=stored.fraction)
