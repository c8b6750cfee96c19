"""Faults from a seed: everything is killed, frozen and cut off, one after the other and several at a time."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from remuda.core.entropy import SeededEntropy
from tests.integration.chaos.corral import Corral, Link, Machine
from tests.support.processes import Process
from tests.support.waiting import wait_until_blocking

Say = Callable[[str], None]
_GAP_S: Final = (0.2, 1.4)  # Between the beginnings of two faults.
_LASTS_S: Final = (0.5, 6.0)


@dataclass(frozen=True, slots=True)
class Fault:
    begin: Callable[[], object]
    end: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Target:
    """Who can be hurt in which ways; in one of them at a time."""

    name: str
    faults: Mapping[str, Fault]


class Weather:
    """`blow` for a while; afterwards everything runs, and can reach whom it needs."""

    def __init__(self, corral: Corral, seed: int, say: Say) -> None:
        self.struck: list[tuple[str, str]] = []
        self._corral = corral
        self._chance = SeededEntropy(seed)
        self._say = say
        self._lasting: dict[str, tuple[float, Fault, str]] = {}  # By target: until when, and what.

    def blow(self, span_s: float) -> None:
        until_s, deck = time.monotonic() + span_s, self._deck()
        while time.monotonic() < until_s:
            self._let_pass(self._between(_GAP_S))
            target, kind = next(deck)
            if target.name not in self._lasting:
                self._begin(target, kind)
        self.calm()

    def calm(self) -> None:
        while self._lasting:
            self._end(next(iter(self._lasting)))
        self._revive()

    def _begin(self, target: Target, kind: str) -> None:
        lasts_s = self._between(_LASTS_S)
        self._say(f"{kind} {target.name} for {lasts_s:.1f} s")
        self.struck.append((target.name, kind))
        self._lasting[target.name] = time.monotonic() + lasts_s, target.faults[kind], kind
        target.faults[kind].begin()

    def _end(self, name: str) -> None:
        _, fault, _ = self._lasting.pop(name)
        fault.end()

    def _let_pass(self, span_s: float) -> None:
        """The moment of a fault is part of the experiment. Meanwhile older ones end."""
        until_s = time.monotonic() + span_s

        def passed() -> bool:
            now_s = time.monotonic()
            for name in [name for name, (until, _, _) in self._lasting.items() if until <= now_s]:
                self._end(name)
            self._revive()
            return now_s >= until_s

        wait_until_blocking(passed, within=span_s + 120)

    def _revive(self) -> None:
        """As a machine's own service manager does with what ends by itself."""
        for machine, start in self._machines():
            killed = machine.name in self._lasting and self._lasting[machine.name][2] == "kill"
            if not machine.process.running and not killed:
                self._say(
                    f"{machine.name} ended by itself with {machine.process.wait()}; it is started again"
                )
                start()

    def _deck(self) -> Iterator[tuple[Target, str]]:
        """Each fault of each target has its turn before any has its second."""
        cards = [(target, kind) for target in self._targets() for kind in target.faults]
        while True:
            yield from sorted(cards, key=lambda _: self._chance.fraction())

    def _targets(self) -> list[Target]:
        corral = self._corral
        targets = [
            Target(name, {"kill": Fault(one.kill, one.start), "freeze": Fault(one.freeze, one.thaw)})
            for name, one in corral.services.items()
        ]
        cuts = {"bus": corral.links_to("bus"), "database": corral.links_to("database")}
        cuts["registry"] = [corral.registry_link]
        targets = [Target(one.name, {**one.faults, **_cuts({"": cuts[one.name]})}) for one in targets]
        for machine, start in self._machines():
            lives = {
                "kill": Fault(machine.kill, start),
                "freeze": Fault(machine.freeze, machine.thaw),
            }
            links = {f" from its {name}": [link] for name, link in machine.links.items()}
            targets.append(Target(machine.name, {**lives, **_cuts(links)}))
        return targets

    def _machines(self) -> list[tuple[Machine, Callable[[], None]]]:
        corral = self._corral

        def starting(start: Callable[[Machine], None], machine: Machine) -> Callable[[], None]:
            return lambda: start(machine)

        return [(one, starting(corral.start_frontend, one)) for one in corral.frontends] + [
            (one, starting(corral.start_worker, one)) for one in corral.workers
        ]

    def _between(self, bounds: tuple[float, float]) -> float:
        least, most = bounds
        return least + (most - least) * self._chance.fraction()


def _cuts(links: Mapping[str, Sequence[Link]]) -> dict[str, Fault]:
    """What is said meanwhile arrives late, or never, for then the connections are found dead."""
    held = {
        f"hold{name}": Fault(_each(ways, Link.cut), _each(ways, Link.mend)) for name, ways in links.items()
    }
    lost = {
        f"cut{name}": Fault(_each(ways, Link.cut), _each(ways, Link.renew)) for name, ways in links.items()
    }
    return {**held, **lost}


def _each(links: Sequence[Link], act: Callable[[Link], None]) -> Callable[[], None]:
    def all_of_them() -> None:
        for link in links:
            act(link)

    return all_of_them


def lives(machines: Sequence[Machine]) -> Iterator[tuple[Machine, Process]]:
    for machine in machines:
        for process in machine.lives:
            yield machine, process
