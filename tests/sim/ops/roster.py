"""What the frontends know of the fleet: who was heard, in which life, with which report. Heartbeats come at
the pace of the simulation, and are missed while nobody can hear."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import anyio

from remuda.core import limits
from remuda.core.ids import BootId, NodeId
from remuda.fleet.health import Reachability, Standing, reasons, wire_status
from remuda.fleet.model import Node
from remuda.wire.nodes import Report
from tests.sim.ops.workers import SimulatedWorker
from tests.sim.ops.world import World
from tests.support.clocks import elapsed_s
from tests.support.nodes import node as build_node
from tests.support.reports import stored

_SILENT_AFTER = 3  # Heartbeats.
_GONE_AFTER = 6
_CANARY_AWAY = timedelta(seconds=limits.CANARY_AWAY_S)


@dataclass(slots=True)
class _Entry:
    node: Node
    heard_at_beat: int
    concluded: tuple[int, Standing] | None = None  # After so many missed beats.


class Roster:
    def __init__(self, world: World) -> None:
        self._world = world
        self._entries: dict[NodeId, _Entry] = {}
        self._beats = 0
        self._told: Sequence[Standing] = ()  # Until one of them changes.
        self._lost_s: dict[NodeId, float] = {}
        self._dice = world.dice.fork("roster")

    async def run(self) -> None:
        while True:
            await anyio.sleep(self._world.pace.heartbeat_s)
            if not self._hears:
                continue  # Nobody's silence grows.
            self._beats += 1
            self._told = ()
            for worker in list(self._world.workers.values()):
                if worker.connected and not self._dice.chance(self._world.weather.lost):
                    self._beat(worker)
            self._note_lost()

    def _note_lost(self) -> None:
        for node, entry in self._entries.items():
            if self._silence(entry) >= _CANARY_AWAY:
                self._lost_s[node] = elapsed_s()

    @property
    def _hears(self) -> bool:
        return self._world.store_up and bool(self._world.up)

    def knows(self, node: NodeId) -> bool:
        return node in self._entries

    def register(self, worker: SimulatedWorker, boot: BootId) -> None:
        """Once per life."""
        known = self._entries.get(worker.node)
        if known is not None and known.node.boot_id == boot:
            return
        now = self._world.store_clock.now()
        node = (
            known.node
            if known
            else build_node(
                id=worker.node,
                name=worker.name,
                address=f"{worker.machine}:50051",
                http_address=f"{worker.machine}:50050",
                version="0.1.0" if worker.reports else "",
                labels={},
            )
        )
        node = replace(node, boot_id=boot, report=None, last_heartbeat=now, registered_at=now)
        self._entries[worker.node] = _Entry(node, self._beats)
        self._told = ()

    def report(self, node: NodeId, report: Report) -> bool:
        """Whether it could be heard. A late one changes nothing."""
        entry = self._entries.get(node)
        if entry is None or not self._hears:
            return False
        known = entry.node
        if report.boot_id != known.boot_id:
            return True
        if known.report is None or known.report.sequence < report.sequence:
            now = self._world.store_clock.now()
            entry.heard_at_beat = self._beats
            self._now(entry, report=stored(report), last_heartbeat=now)
            self._dice.pick(self._world.up).wake()
        return True

    def drain(self, node: NodeId, *, drained: bool) -> None:
        self._now(self._entries[node], drained=drained)

    def remove(self, node: NodeId) -> None:
        del self._entries[node]
        self._told = ()
        self._world.tables.remove_node(node)

    def standings(self) -> Sequence[Standing]:
        if not self._told:
            self._told = [self._standing(entry) for entry in self._entries.values()]
        return self._told

    def _now(self, entry: _Entry, **changes: object) -> None:
        """What is known of a node is different from now on."""
        entry.node = replace(entry.node, **changes)  # type: ignore[arg-type]  # Fields of Node.
        self._told = ()

    def lost_s(self, node: NodeId) -> float:
        """When it was last away for so long that no roll-out waits for it to go first."""
        return self._lost_s.get(node, 0.0)

    def away(self, node: NodeId) -> bool:
        """Whether work for it has to wait."""
        entry = self._entries.get(node)
        return entry is not None and (entry.node.drained or self._reachability(entry) is not Reachability.UP)

    def _beat(self, worker: SimulatedWorker) -> None:
        entry = self._entries.get(worker.node)
        if entry is None:
            return
        entry.heard_at_beat = self._beats
        self._now(entry, last_heartbeat=self._world.store_clock.now())
        worker.say_what_is_unheard()

    def _reachability(self, entry: _Entry) -> Reachability:
        missed = self._beats - entry.heard_at_beat
        if missed >= _GONE_AFTER:
            return Reachability.GONE
        return Reachability.SILENT if missed >= _SILENT_AFTER else Reachability.UP

    def _standing(self, entry: _Entry) -> Standing:
        missed, known = self._beats - entry.heard_at_beat, entry.concluded
        if known is None or known[0] != missed or known[1].node is not entry.node:
            known = entry.concluded = (missed, self._conclude(entry))
        return known[1]

    def _conclude(self, entry: _Entry) -> Standing:
        node, reachability = entry.node, self._reachability(entry)
        silence = self._silence(entry)
        why = reasons(node, reachability, silence)
        return Standing(node, reachability, wire_status(node, reachability), silence, why)

    def _silence(self, entry: _Entry) -> timedelta:
        return timedelta(seconds=self._world.pace.heartbeat_s * (self._beats - entry.heard_at_beat))
