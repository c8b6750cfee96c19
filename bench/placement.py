"""What a placement takes in a large fleet, and how often models are swapped on one small machine.

    python -m bench.placement

The decision: what every node offers, and the best of them, for a model that is loaded nowhere. Reading the
store is not counted. Who could get the backend is told before: planned for each node, for each kind of
machine, and once more when each node has told what it had told before. The swaps: three models of which one
fits, asked for in turn; by the rules of `remuda.scheduler.eviction`, and first come first served.
"""

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from tests.support.nodes import THRESHOLDS
from tests.support.nodes import node as fleet_node
from tests.unit.scheduler.plain_supply import plain_supplies

from remuda.core.ids import BootId, NodeId, ReplicaKey
from remuda.core.slices import Sliced, at_once
from remuda.fleet.health import Fleet, ListeningPeriod, ListeningPeriods
from remuda.fleet.model import Resources
from remuda.fleet.verdicts import ObservedNode
from remuda.gallery.index import read_index
from remuda.gallery.model import Reading
from remuda.gallery.sources import REMUDA, shipped_index
from remuda.models.files import NeededFile
from remuda.models.memory import MemoryUse
from remuda.ops.model import OpId
from remuda.scheduler.backend_supply import Supply, SupplyBook
from remuda.scheduler.eviction import WaitedFor, asked_again, may_go, turn_in_line
from remuda.scheduler.facts import PlacementFacts
from remuda.scheduler.model import Need, Replica, Replicas, ReplicaState
from remuda.scheduler.shortlist import SupplyFacts, best_place
from remuda.wire.nodes import InstalledArtifact, ModelFile, Report

GIB: Final = 1 << 30
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
MODELS: Final = "ABC"
CASES: Final = (
    ("many nodes have room and the file", "m5.gguf", 6),
    ("the file is copied from others", "m6.gguf", 6),
    ("others have to go", "m5.gguf", 36),
    ("no node is large enough", "m5.gguf", 600),
    ("no node has the file", "other.gguf", 6),
)


def _view(number: int) -> ObservedNode:
    boot = BootId(f"boot-{number}")
    total = (0, 24, 48, 96)[number % 4] * GIB
    node = fleet_node(
        id=NodeId(f"node-{number}"),
        name=f"node-{number}",
        boot_id=boot,
        version="0.1.0",
        resources=Resources(
            total_vram=total,
            available_vram=total // 3,
            total_ram=64 * GIB,
            available_ram=40 * GIB,
        ),
        last_heartbeat=NOW - timedelta(seconds=5),
    )
    files = tuple(ModelFile(path=f"m{file}.gguf", size=4 * GIB) for file in range(number % 8))
    report = Report(
        boot_id=boot,
        sequence=1,
        installed=(InstalledArtifact(name="cuda12-llama-cpp", alias="llama-cpp"),),
        model_files=files,
    )
    hearing = ListeningPeriods((ListeningPeriod(NOW - timedelta(hours=1), NOW),))
    standing = Fleet(NOW, hearing, [node]).standing(node, THRESHOLDS)
    return ObservedNode(standing, True, report, None)


def _row(number: int, nodes: int) -> Replica:
    node = number % nodes
    return Replica(
        ReplicaKey(f"m{number % 500}", number // 500),
        NodeId(f"node-{node}"),
        ReplicaState.LOADED,
        OpId(f"op-{number}"),
        "llama-cpp",
        "r1",
        memory_bytes=3 * GIB,
        in_vram=node % 4 > 0,
        boot=BootId(f"boot-{node}"),
        instance=f"i-{number}",
        created_at=NOW - timedelta(hours=2),
        updated_at=NOW - timedelta(hours=1),
        last_used=NOW - timedelta(seconds=number),
    )


def decision_ms(nodes: int, replicas: int, rounds: int, *, file: str, gib: int) -> tuple[list[float], float]:
    """What each decision took, and the longest that others were held up, in the least disturbed round."""
    views = [_view(number) for number in range(nodes)]
    seen = Replicas(NOW, 1, tuple(_row(number, nodes) for number in range(replicas)))
    need = Need("new", "llama-cpp", "r1", 5 * GIB, gib * GIB, MemoryUse(gib * GIB, GIB), file=file)
    size = NeededFile(file, 4 * GIB, "", here=False)
    facts = PlacementFacts(views, seen, lambda key: 0, (), lambda node: "", files=(size,))
    known = SupplyFacts(
        lambda node: Supply(has=True), lambda node: False, lambda offer: replace(offer, has_backend=True)
    )
    taken: list[float] = []
    held_up: list[float] = []
    for _ in range(rounds):
        whole, longest = _timed(best_place(need, facts, known))
        taken.append(whole)
        held_up.append(longest)
    return taken, min(held_up)


def supply_ms(nodes: int, rounds: int) -> list[tuple[str, float, float]]:
    """At best, and the longest that one held up others."""
    views = [_view(number) for number in range(nodes)]
    readings = (Reading(REMUDA, read_index(shipped_index()), confirmed_at=NOW),)
    book = SupplyBook()
    at_once(book.of("llama-cpp", views, readings))
    ways: tuple[tuple[str, Callable[[], Sliced[object]]], ...] = (
        ("for each node", lambda: _in_one(lambda: plain_supplies("llama-cpp", views, readings))),
        ("for each kind", lambda: SupplyBook().of("llama-cpp", views, readings)),
        ("remembered", lambda: book.of("llama-cpp", views, readings)),
    )
    found = []
    for name, way in ways:
        taken = [_timed(way()) for _ in range(rounds)]
        found.append((name, min(whole for whole, _ in taken), min(longest for _, longest in taken)))
    return found


def _in_one(work: Callable[[], object]) -> Sliced[object]:
    yield from ()
    return work()


def _timed(work: Sliced[object]) -> tuple[float, float]:
    """The whole, and the longest slice."""
    whole, longest = 0.0, 0.0
    while True:
        begun = time.perf_counter()
        over = next(work, work)
        slice_ms = (time.perf_counter() - begun) * 1000
        whole, longest = whole + slice_ms, max(longest, slice_ms)
        if over is work:
            return whole, longest


# Swaps.


@dataclass(slots=True)
class Machine:
    """With room for one of the models. Seconds count from 0."""

    load_s: int
    answer_s: int
    loaded: str = ""
    ready_s: int = 0  # Since or until when.
    begun_s: int = 0
    busy_until: list[int] = field(default_factory=list)
    swaps: int = 0

    def swap(self, model: str, now_s: int) -> None:
        self.loaded, self.begun_s, self.ready_s = model, now_s, now_s + self.load_s
        self.swaps += 1

    def in_flight(self, now_s: int) -> int:
        self.busy_until = [one for one in self.busy_until if one > now_s]
        return len(self.busy_until)

    def row(self) -> Replica:
        return replace(
            _row(0, 1),
            key=ReplicaKey(self.loaded, 0),
            created_at=NOW + timedelta(seconds=self.begun_s),
            updated_at=NOW + timedelta(seconds=self.ready_s),
        )


def in_turns(arrivals: list[tuple[int, str]], machine: Machine) -> list[int]:
    """By the rules of eviction: everybody looks once a second."""
    waiting = {model: deque[int]() for model in MODELS}
    line: dict[str, WaitedFor] = {}
    due, waits, draining, now_s = deque(arrivals), list[int](), "", 0
    while due or any(waiting.values()):
        while due and due[0][0] <= now_s:
            asked_s, model = due.popleft()
            waiting[model].append(asked_s)
        load = machine.in_flight(now_s)
        if draining and not load:
            machine.swap(draining, now_s)
            line.pop(draining, None)
            draining = ""
        if machine.loaded and now_s >= machine.ready_s and not draining:
            while waiting[machine.loaded]:
                waits.append(now_s - waiting[machine.loaded].popleft())
                machine.busy_until.append(now_s + machine.answer_s)
        for model in sorted(MODELS):
            if not waiting[model] or model == machine.loaded or draining:
                continue
            line = asked_again(line, model, now_s)
            turn = turn_in_line(model, line, now_s)
            line[model] = replace(line[model], room_on=frozenset({NodeId("node-0")}))
            now = NOW + timedelta(seconds=now_s)
            in_flight = dict.fromkeys([machine.row().key], machine.in_flight(now_s))
            ready = not machine.loaded or now_s >= machine.ready_s
            if ready and (not machine.loaded or may_go(machine.row(), now, in_flight.__getitem__, turn)):
                draining = model
        now_s += 1
    return waits


def first_come(arrivals: list[tuple[int, str]], machine: Machine) -> list[int]:
    """One after the other; whoever needs another model swaps."""
    now_s, waits = 0, list[int]()
    for asked_s, model in arrivals:
        now_s = max(now_s, asked_s)
        if model != machine.loaded:
            machine.swap(model, now_s)
            now_s += machine.load_s
        waits.append(now_s - asked_s)
        now_s += machine.answer_s
    return waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=600)
    given = parser.parse_args()
    for what, file, gib in CASES:
        taken, longest = decision_ms(given.nodes, given.replicas, given.rounds, file=file, gib=gib)
        print(
            f"{given.nodes} nodes, {given.replicas} replicas, {what}: median "
            f"{statistics.median(taken):.1f} ms, at best {min(taken):.1f} ms (aim 5); "
            f"others wait {longest:.1f} ms at most"
        )
    for way, whole, longest in supply_ms(given.nodes, given.rounds):
        print(
            f"{given.nodes} nodes, who could get the backend, {way}: at best {whole:.1f} ms; "
            f"others wait {longest:.1f} ms"
        )
    print(f"{given.requests} requests for A, B, C in turn, one machine with room for one, loads of 8 s:")
    print(f"{'one each':>10}  {'':14} {'swaps':>6} {'longest wait':>13} {'median':>7}")
    for gap_s in (1, 2, 5, 20):
        arrivals = [(number * gap_s, MODELS[number % 3]) for number in range(given.requests)]
        swaps: list[int] = []
        for name, rule in (("first come", first_come), ("in turns", in_turns)):
            machine = Machine(load_s=8, answer_s=2)
            waits = rule(arrivals, machine)
            swaps.append(machine.swaps)
            ratio = f"  {swaps[0] / swaps[1]:.1f} times fewer (aim 3)" if len(swaps) > 1 else ""
            print(
                f"{gap_s:>8} s  {name:14} {machine.swaps:>6} {max(waits):>11} s "
                f"{statistics.median(waits):>5.0f} s{ratio}"
            )


if __name__ == "__main__":
    main()
