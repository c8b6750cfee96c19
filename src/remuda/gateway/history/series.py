"""ChartFigures of the last hour in steps of ten seconds, by node, as a frontend keeps them in memory. Pure.

Several frontends keep them, and all are to show the same. So figures are joined in a way in which neither
order nor repetition matters: of what every frontend sees of a node (its memory, its disk) the largest value
of a step counts; what each frontend counts for itself (requests, tokens) is kept by frontend and added up
when it is asked for. A step is the number of whole `STEP_S` since 1970 on the frontend's wall clock.
"""

import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.model import Resources
from remuda.wire.nodes import Report

STEP_S: Final = 10
STEPS: Final = 360
AHEAD: Final = 6  # Steps: so much later than ours another frontend's clock may be.
NODES_MAX: Final = 2000  # With figures; those of further nodes are not kept.
FRONTENDS_MAX: Final = 32
VALUE_MAX: Final = 1e30


class SeenFigure(IntEnum):
    """What every frontend sees of a node."""

    HEARD = 0  # 1 while the node is heard.
    USED_RAM = 1
    TOTAL_RAM = 2
    USED_VRAM = 3
    TOTAL_VRAM = 4
    USED_DISK = 5
    TOTAL_DISK = 6


class CountedFigure(IntEnum):
    """What each frontend counts of its own requests to a node."""

    IN_FLIGHT = 0  # On average over the step.
    TOKENS_PER_S = 1


Values = Sequence[float | None]
Tracks = tuple["array[float]", ...]
"""By kind: one value per slot of the ring, NaN where nothing is known."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one frontend knows of one step."""

    step: int
    seen: Mapping[NodeId, Values]
    counted: Mapping[NodeId, Values]  # Nodes that it had no requests with are not here.


@dataclass(frozen=True, slots=True)
class NodeHour:
    """All that is known of a node, from step `first` on. `counted` by frontend."""

    node: NodeId
    first: int
    seen: Tracks  # Here without a ring: the first value is that of `first`.
    counted: Mapping[FrontendId, Tracks]


@dataclass(frozen=True, slots=True)
class ChartFigures:
    """What a chart shows: by name, one value per step; None where it is not known. `limits` are the totals
    that figures of the same name are a part of."""

    times: Sequence[int]  # Seconds since 1970 at which the steps begin.
    values: Mapping[str, Values]
    limits: Mapping[str, Values]


Shared = Mapping[SeenFigure, Mapping[NodeId, str]]
"""Of what several nodes may have together, by what it is known: nodes with the same have the same."""
NOTHING_SHARED: Final[Shared] = {}


def shared_by(reports: Mapping[NodeId, Report | None]) -> Shared:
    """Workers on one machine that tell of the same disk, or of the same RAM."""
    told = {node: report for node, report in reports.items() if report is not None}
    disks = {node: report.disk_id for node, report in told.items() if report.disk_id}
    memories = {node: report.memory_id for node, report in told.items() if report.memory_id}
    return {
        SeenFigure.USED_DISK: disks,
        SeenFigure.TOTAL_DISK: disks,
        SeenFigure.USED_RAM: memories,
        SeenFigure.TOTAL_RAM: memories,
    }


NO_FIGURES: Final = ChartFigures((), {}, {})


def seen_of(resources: Resources) -> Values:
    """What a node that is heard says of itself. A total of 0 is not known."""
    pairs = (
        (resources.total_ram, resources.available_ram),
        (resources.total_vram, resources.available_vram),
        (resources.total_disk, resources.available_disk),
    )
    parts = ((max(total - free, 0), total) if total else (None, None) for total, free in pairs)
    return 1.0, *(value for part in parts for value in part)


class LastHour:
    """Rings of the last hour. `now` is the present step, moved by `move_to`; steps before it are shown."""

    def __init__(self, now: int, steps: int = STEPS) -> None:
        self._now = now
        self._steps = steps
        self._slots = steps + AHEAD + 1
        self._unseen = self._new(len(SeenFigure))
        self._since = now
        self._shared = NOTHING_SHARED
        self._seen: dict[NodeId, Tracks] = {}
        self._counted: dict[FrontendId, dict[NodeId, Tracks]] = {}
        self._of_fleet: dict[int, Row] = {}  # By step, as far as they have been added up since they changed.

    @property
    def first(self) -> int:
        """The oldest step that is kept."""
        return self._now - self._steps

    @property
    def since(self) -> int:
        """The oldest step of which something may be known."""
        return max(self._since, self.first)

    @property
    def over(self) -> int:
        """The newest step that is over."""
        return self._now - 1

    def nodes(self) -> Collection[NodeId]:
        return self._seen.keys() | {node for nodes in self._counted.values() for node in nodes}

    def move_to(self, now: int) -> None:
        """Time has passed, or the clock was set: what is older than an hour now, or of a time yet to come, is
        forgotten."""
        if now == self._now:
            return
        low, high = sorted((self._now, now))
        changed = range(low + AHEAD + 1, min(high + AHEAD, low + AHEAD + self._slots) + 1)
        self._now = now
        for track in self._tracks():
            for step in changed:
                track[step % self._slots] = math.nan
        self._of_fleet = {step: row for step, row in self._of_fleet.items() if self.first <= step < low}

    def add(self, frontend: FrontendId, sample: Sample) -> None:
        """What `frontend` says of one step."""
        if not self._keeps(sample.step):
            return
        slot = sample.step % self._slots
        for node, values in sample.seen.items():
            _raise(self._seen_tracks(node), slot, values)
        for node, values in sample.counted.items():
            _raise(self._counted_tracks(frontend, node), slot, values)
        self._changed((sample.step,))

    def join(self, history: NodeHour) -> None:
        """What another frontend has of one node."""
        steps = [history.first + number for number in range(len(history.seen[0]))]
        kept = [(number, step % self._slots) for number, step in enumerate(steps) if self._keeps(step)]
        _join(self._seen_tracks(history.node), history.seen, kept)
        for frontend, tracks in history.counted.items():
            _join(self._counted_tracks(frontend, history.node), tracks, kept)
        self._changed(step for step in steps if self._keeps(step))

    def of(self, node: NodeId, first: int) -> NodeHour:
        """All that is known of a node, from step `first` on, as far as steps are over."""
        first = max(first, self.first)
        slots = [step % self._slots for step in range(first, self._now)]
        counted = {
            frontend: _cut(nodes[node], slots) for frontend, nodes in self._counted.items() if node in nodes
        }
        return NodeHour(node, first, _cut(self._seen.get(node, self._unseen), slots), counted)

    def forget_empty(self) -> None:
        """Nodes and frontends of which nothing is left."""
        self._seen = _not_empty(self._seen)
        counted = {frontend: _not_empty(nodes) for frontend, nodes in self._counted.items()}
        self._counted = {frontend: nodes for frontend, nodes in counted.items() if nodes}

    # What is shown.

    def of_node(self, node: NodeId) -> ChartFigures:
        return _figures(
            {step: self._row([node], step % self._slots) for step in range(self.first, self._now)}
        )

    def of_fleet(self) -> ChartFigures:
        """All nodes together: of each step the sum over the nodes that are known then, in which what several
        of them share counts once. After `add_up`."""
        return _figures({step: self._of_fleet[step] for step in range(self.first, self._now)})

    def add_up(self, shared: "Shared" = NOTHING_SHARED) -> Iterator[None]:
        """What `of_fleet` needs, in small pieces: of hundreds of nodes it takes a while."""
        if shared != self._shared:
            self._shared = shared
            self._of_fleet.clear()
        nodes = sorted(self.nodes())
        for step in range(self.first, self._now):
            if step not in self._of_fleet:
                self._of_fleet[step] = self._row(nodes, step % self._slots)
                yield

    def _row(self, nodes: Sequence[NodeId], slot: int) -> "Row":
        counted = [of[node] for of in self._counted.values() for node in nodes if node in of]
        return Row(
            [self._seen_of_all(nodes, kind, slot) for kind in SeenFigure],
            [_sum(tracks[kind][slot] for tracks in counted) for kind in CountedFigure],
        )

    def _seen_of_all(self, nodes: Sequence[NodeId], kind: SeenFigure, slot: int) -> float | None:
        places = self._shared.get(kind, {})
        largest: dict[str, float] = {}
        for node in nodes:
            if node not in self._seen or math.isnan(value := self._seen[node][kind][slot]):
                continue
            place = places.get(node, node)
            largest[place] = max(value, largest.get(place, value))
        return math.fsum(largest.values()) if largest else None

    # Rings.

    def _keeps(self, step: int) -> bool:
        return self.first <= step <= self._now + AHEAD

    def _changed(self, steps: Iterable[int]) -> None:
        for step in steps:
            self._since = min(self._since, step)
            self._of_fleet.pop(step, None)

    def _tracks(self) -> Iterator["array[float]"]:
        for tracks in self._seen.values():
            yield from tracks
        for nodes in self._counted.values():
            for tracks in nodes.values():
                yield from tracks

    def _seen_tracks(self, node: NodeId) -> Tracks:
        return self._tracks_in(self._seen, node, len(SeenFigure))

    def _counted_tracks(self, frontend: FrontendId, node: NodeId) -> Tracks:
        if frontend not in self._counted and len(self._counted) >= FRONTENDS_MAX:
            return self._new(len(CountedFigure))
        return self._tracks_in(self._counted.setdefault(frontend, {}), node, len(CountedFigure))

    def _tracks_in(self, nodes: dict[NodeId, Tracks], node: NodeId, kinds: int) -> Tracks:
        """Those of a node; of one beyond the most that are kept, some that are thrown away."""
        known = nodes.get(node)
        if known is None:
            known = self._new(kinds)
            if len(nodes) < NODES_MAX:
                nodes[node] = known
        return known

    def _new(self, kinds: int) -> Tracks:
        return tuple(array("f", [math.nan]) * self._slots for _ in range(kinds))


@dataclass(frozen=True, slots=True)
class Row:
    """One step, added up over nodes and frontends."""

    seen: Values
    counted: Values


def _figures(rows: Mapping[int, Row]) -> ChartFigures:
    """From the first step on of which something is known."""
    steps = list(rows)
    known = next((n for n, row in enumerate(rows.values()) if _says_something(row)), None)
    if known is None:
        return NO_FIGURES
    shown = [rows[step] for step in steps[known:]]
    return ChartFigures([step * STEP_S for step in steps[known:]], _values(shown), _limits(shown))


def _says_something(row: Row) -> bool:
    return any(value is not None for value in (*row.seen, *row.counted))


def _values(rows: Sequence[Row]) -> Mapping[str, Values]:
    return {
        "used_ram": [_whole(row.seen[SeenFigure.USED_RAM]) for row in rows],
        "used_vram": [_whole(row.seen[SeenFigure.USED_VRAM]) for row in rows],
        "in_flight": [_idle_where_heard(row, CountedFigure.IN_FLIGHT) for row in rows],
        "tokens_per_s": [_idle_where_heard(row, CountedFigure.TOKENS_PER_S) for row in rows],
        "free_disk": [_less(row.seen[SeenFigure.TOTAL_DISK], row.seen[SeenFigure.USED_DISK]) for row in rows],
    }


def _limits(rows: Sequence[Row]) -> Mapping[str, Values]:
    return {
        "used_ram": [_whole(row.seen[SeenFigure.TOTAL_RAM]) for row in rows],
        "used_vram": [_whole(row.seen[SeenFigure.TOTAL_VRAM]) for row in rows],
        "free_disk": [_whole(row.seen[SeenFigure.TOTAL_DISK]) for row in rows],
    }


def _idle_where_heard(row: Row, kind: CountedFigure) -> float | None:
    """A node that is heard, and that no frontend had a request with, had none."""
    value = row.counted[kind]
    if value is None:
        return None if row.seen[SeenFigure.HEARD] is None else 0
    return round(value, 2)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _less(total: float | None, used: float | None) -> int | None:
    return None if total is None or used is None else round(max(total - used, 0))


def _sum(values: Iterable[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) if known else None


def _not_empty(nodes: Mapping[NodeId, Tracks]) -> dict[NodeId, Tracks]:
    return {
        node: tracks
        for node, tracks in nodes.items()
        if not all(math.isnan(value) for track in tracks for value in track)
    }


def _cut(tracks: Tracks, slots: Sequence[int]) -> Tracks:
    return tuple(array("f", [track[slot] for slot in slots]) for track in tracks)


def _raise(tracks: Tracks, slot: int, values: Values) -> None:
    for track, value in zip(tracks, values, strict=False):  # A newer frontend may know more kinds.
        if (
            value is not None and value <= VALUE_MAX and not track[slot] >= value
        ):  # Also where nothing is known yet.
            track[slot] = value


def _join(tracks: Tracks, others: Tracks, slots: Iterable[tuple[int, int]]) -> None:
    for number, slot in slots:
        for track, other in zip(tracks, others, strict=False):
            value = other[number]
            if not math.isnan(value) and not track[slot] >= value:
                track[slot] = value
