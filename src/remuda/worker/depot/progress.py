"""How far an install is: every byte counts when it arrives and again when it is unpacked. Pure.

Neither the percentage nor the phase ever goes back, also when a second source has to be tried.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from remuda.oci.model import Descriptor
from remuda.oci.progress import FileProgress, PullPhase

_ORDER = (PullPhase.RESOLVING, PullPhase.DOWNLOADING, PullPhase.EXTRACTING)


@dataclass(frozen=True, slots=True)
class ProgressStep:
    """One thing that was noticed, and how far everything is with it."""

    phase: PullPhase
    percentage: float
    file: FileProgress | None = None


OnStep = Callable[[ProgressStep], None]


def ignore_steps(step: ProgressStep) -> None:
    """For callers whom nobody watches."""


class InstallTracker:
    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._phase = PullPhase.RESOLVING
        self._percentage = 0.0
        self._totals: dict[str, int] = {}
        self._done: dict[tuple[str, PullPhase], int] = {}

    def begin(self) -> None:
        """At a source: what an earlier one brought no longer counts."""
        self._totals.clear()
        self._done.clear()
        self._on_step(ProgressStep(self._phase, self._percentage))

    def expect(self, layers: Iterable[Descriptor]) -> None:
        """All there is to fetch, so that percentages are of the whole from the first byte on."""
        self._totals = {layer.digest: layer.size for layer in layers}
        for digest, size in self._totals.items():
            self._on_step(ProgressStep(self._phase, self._percentage, FileProgress(digest, 0, size)))

    def observe(self, event: FileProgress) -> None:
        self._totals.setdefault(event.file, event.total_bytes)
        self._totals[event.file] = max(self._totals[event.file], event.done_bytes)
        self._done[event.file, event.phase] = event.done_bytes
        self._phase = max(self._phase, self._current(), key=_ORDER.index)
        whole = 2 * sum(self._totals.values())
        share = 100.0 * sum(self._done.values()) / whole if whole else 0.0
        self._percentage = max(self._percentage, min(share, 100.0))
        self._on_step(ProgressStep(self._phase, self._percentage, event))

    def arrive(self) -> None:
        self._phase, self._percentage = PullPhase.EXTRACTING, 100.0
        self._on_step(ProgressStep(self._phase, self._percentage))

    def _current(self) -> PullPhase:
        fetched = (
            self._done.get((file, PullPhase.DOWNLOADING), -1) >= size for file, size in self._totals.items()
        )
        return PullPhase.EXTRACTING if all(fetched) else PullPhase.DOWNLOADING
