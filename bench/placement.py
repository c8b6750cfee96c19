"""What a placement takes in a large fleet, and how often models are swapped on one small machine.

    python -m bench.placement

The decision: what every node offers, and the best of them, for a model that is loaded nowhere, in CPU time;
the first look, and each later one a second after another, when a tenth of the nodes has sent a heartbeat.
Reading the store is not counted. Who could get the backend is told before: planned for each node, for each
kind of machine, and once more when each node has told what it had told before. The swaps: three models of
which one fits, asked for in turn; by the rules of `remuda.scheduler.eviction`, and first come first served.
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
from remuda.scheduler.facts import PlacementFacts, ReportPaths
from remuda.scheduler.model import Need, NodeOffer, Replica, Replicas, ReplicaState
from remuda.scheduler.refusals import RefusalBook
from remuda.scheduler.shortlist import SupplyFacts, best_place
from remuda.wire.nodes import InstalledArtifact, ModelFile, Report

GIB: Final = 1 << 30
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
MODELS: Final = "ABC"


@dataclass(frozen=True, slots=True)
class Case:
    what: str
    file: str
    gib: int
    busy: bool = False  # Each replica has requests, so that none can leave.


CASES: Final = (
    Case("many nodes have room and the file", "m5.gguf", 6),
    Case("the file is copied from others", "m6.gguf", 6),
    Case("others have to go", "m5.gguf", 36),
    Case("no node is large enough", "m5.gguf", 600),
    Case("no node has the file", "other.gguf", 6),
    Case("all are full and busy", "m5.gguf", 36, busy=True),
)
HEARD_ANEW: Final = 10  # In a second one of so many nodes sends a heartbeat.


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
        change=number,
    )


@dataclass(slots=True)
class Taken:
    """In milliseconds, of each round; and the longest that others wait, in the least disturbed one."""

    first: list[float]  # Nothing is known of a look before.
    held_up: float
    again: list[float]  # A second after another look, with what some nodes have told since.


def decision_ms(nodes: int, replicas: int, rounds: int, case: Case) -> Taken:
    views = [_view(number) for number in range(nodes)]
    rows = tuple(_row(number, nodes) for number in range(replicas))
    need = Need(
        "new", "llama-cpp", "r1", 5 * GIB, case.gib * GIB, MemoryUse(case.gib * GIB, GIB), file=case.file
    )
    size = NeededFile(case.file, 4 * GIB, "", here=False)
    known = SupplyFacts(lambda node: Supply(has=True), lambda node: False, _with_backend)
    paths, kept = ReportPaths(), RefusalBook()
    first, held_up, again = [], [], []
    for round_no in range(rounds):
        now = NOW + timedelta(seconds=round_no)
        for number in range(round_no % HEARD_ANEW, nodes, HEARD_ANEW):
            views[number] = _heard(views[number], now)
        facts = PlacementFacts(
            list(views),
            Replicas(now, 1, tuple(map(replace, rows))),  # Read anew.
            lambda key: int(case.busy),
            (),
            lambda node: "",
            files=(size,),
            paths=paths,
        )
        whole, longest = _timed(best_place(need, facts, known))
        first.append(whole)
        held_up.append(longest)
        again.append(_timed(best_place(need, facts, known, kept))[0])
    return Taken(first, min(held_up), again[1:])


def _with_backend(offer: NodeOffer) -> NodeOffer:
    offer.has_backend = True
    return offer


def _heard(view: ObservedNode, now: datetime) -> ObservedNode:
    node = view.standing.node
    free = node.resources.available_ram - 1
    told = replace(node, last_heartbeat=now, resources=replace(node.resources, available_ram=free))
    assert view.report is not None
    report = view.report.model_copy(update={"sequence": view.report.sequence + 1})
    return replace(view, standing=replace(view.standing, node=told), report=report)


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
    """Its CPU time, and the longest slice by the clock, on which other programs may have had the core."""
    cpu_began, longest = time.thread_time(), 0.0
    while True:
        began = time.perf_counter()
        over = next(work, work)
        longest = max(longest, (time.perf_counter() - began) * 1000)
        if over is work:
            return (time.thread_time() - cpu_began) * 1000, longest


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
    print(f"{given.nodes} nodes, {given.replicas} replicas, aim 5 ms:")
    print(
        f"{'':36} {'first look':>10}  {'at best':>7}  {'others wait':>11}  {'each later':>10}  {'at best':>7}"
    )
    for case in CASES:
        ms = decision_ms(given.nodes, given.replicas, given.rounds, case)
        first, again = ms.first, ms.again
        figures = (statistics.median(first), min(first), ms.held_up, statistics.median(again), min(again))
        print(f"{case.what:36} {' '.join(f'{figure:>11.1f}' for figure in figures)}")
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
