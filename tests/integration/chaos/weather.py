"""Faults from a seed: everything is killed, frozen and cut off, one after the other and several at a time."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from remuda.core.entropy import SeededEntropy
from tests.integration.chaos.corral import Breakable, Corral, Link
from tests.support.waiting import wait_until_blocking

Say = Callable[[str], None]
_GAP_S: Final = (0.2, 1.4)  # Between the beginnings of two faults.
_LASTS_S: Final = (0.5, 6.0)
_DEAD_S: Final = (0.1, 2.0)  # To start again takes its own time.


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
            # Drawn in any case: what happened so far must not change what the seed says next.
            lasts_s = self._between(_DEAD_S if kind == "kill" else _LASTS_S)
            if target.name not in self._lasting:
                self._begin(target, kind, lasts_s)
        self.calm()

    def calm(self) -> None:
        """What has not recovered yet may still end by itself."""
        while self._lasting:
            self._end(next(iter(self._lasting)))
        self._corral.wait_until_well(meanwhile=self._revive)

    def _begin(self, target: Target, kind: str, lasts_s: float) -> None:
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
        for machine in self._corral.machines:
            killed = machine.name in self._lasting and self._lasting[machine.name][2] == "kill"
            if not machine.process.running and not killed:
                self._say(f"{machine.name} ended by itself with {machine.process.wait()}, and is restarted")
                machine.start()

    def _deck(self) -> Iterator[tuple[Target, str]]:
        """Each fault of each target has its turn before any has its second."""
        cards = [(target, kind) for target in self._targets() for kind in target.faults]
        while True:
            yield from sorted(cards, key=lambda _: self._chance.fraction())

    def _targets(self) -> Iterator[Target]:
        corral = self._corral
        for name, service, links in corral.services:
            yield Target(name, {**_ends(service), **_cuts("", links)})
        for machine in corral.machines:
            faults = _ends(machine)
            for name, link in machine.links.items():
                faults |= _cuts(f" from its {name}", [link])
            yield Target(machine.name, faults)

    def _between(self, bounds: tuple[float, float]) -> float:
        least, most = bounds
        return least + (most - least) * self._chance.fraction()


def _ends(victim: Breakable) -> dict[str, Fault]:
    return {"kill": Fault(victim.kill, victim.start), "freeze": Fault(victim.freeze, victim.thaw)}


def _cuts(where: str, links: Sequence[Link]) -> dict[str, Fault]:
    """What is said meanwhile arrives late, or never, for then the connections are found dead."""
    cut = _each(links, Link.cut)
    return {
        f"hold{where}": Fault(cut, _each(links, Link.mend)),
        f"cut{where}": Fault(cut, _each(links, Link.renew)),
    }


def _each(links: Sequence[Link], act: Callable[[Link], None]) -> Callable[[], None]:
    def all_of_them() -> None:
        for link in links:
            act(link)

    return all_of_them
