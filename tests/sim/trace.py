"""What happened, in order: for people who look at a failing seed, and to compare two runs of one."""

from collections import Counter
from dataclasses import dataclass, field

from tests.support.clocks import elapsed_s


class Violation(AssertionError):
    """A checker's claim does not hold."""


@dataclass(slots=True)
class Trace:
    lines: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def fault_count(self) -> int:
        return sum(self.faults.values())

    def event(self, what: str, *about: object) -> None:
        self.lines.append(f"{elapsed_s():9.3f}  {what:<18} {' '.join(str(part) for part in about)}")

    def fault(self, kind: str, *about: object) -> None:
        self.faults[kind] += 1
        self.event(f"! {kind}", *about)

    def violated(self, claim: str, *about: object) -> Violation:
        self.event("VIOLATION", claim, *about)
        return Violation(f"{claim}: {' '.join(str(part) for part in about)}")
