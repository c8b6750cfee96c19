"""Whether the reply to an install was lost. Pure.

An answer is lost with the connection it was on. Silence does not tell: the worker itself has to show, twice,
that it has nothing of this in hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from remuda.core.ids import ReplicaKey
from remuda.ops.model import OpId
from remuda.wire.backends import InstalledBackend
from remuda.wire.models import RunningModel
from remuda.wire.nodes import Report

_TIMES: Final = 2


class AnswerVerdict(Enum):
    WAIT = auto()
    ASK_AGAIN = auto()  # It is done, or can be begun afresh: installs are safe to repeat.
    LOST = auto()  # Its worker knows nothing of it.


@dataclass(frozen=True, slots=True)
class AnswerMemory:
    """What was noticed since the worker was asked, and counts only when it is noticed again."""

    known: int | None = None  # The report that was there when it was asked, which says nothing.
    without: frozenset[int] = frozenset()  # Reports that have nothing of this in hand.
    moved: float = 0.0  # How far the bytes were.
    absences: int = 0  # In a row.


@dataclass(frozen=True, slots=True)
class Lists:
    """What a worker without reports told when it was asked, and how far the bytes were by then."""

    running: Sequence[RunningModel]
    installed: Sequence[InstalledBackend]
    moved: float = 0.0


def by_report(report: Report, op: OpId, memory: AnswerMemory) -> tuple[AnswerVerdict, AnswerMemory]:
    if report.sequence == memory.known or any(work.op_id == op for work in report.work):
        return AnswerVerdict.WAIT, memory
    without = memory.without | {report.sequence}
    verdict = AnswerVerdict.ASK_AGAIN if len(without) >= _TIMES else AnswerVerdict.WAIT
    return verdict, replace(memory, without=without)


def by_lists(
    lists: Lists, key: ReplicaKey, backend: str, memory: AnswerMemory
) -> tuple[AnswerVerdict, AnswerMemory]:
    """A backend that is being fetched runs nowhere yet. One that is there starts within a moment: if it does
    not, nobody is at it."""
    if any(key == (one.model_id, one.replica_index) for one in lists.running):
        return AnswerVerdict.ASK_AGAIN, memory
    if lists.moved > memory.moved or not _has(lists.installed, backend):
        return AnswerVerdict.WAIT, replace(memory, moved=lists.moved, absences=0)
    absences = memory.absences + 1
    verdict = AnswerVerdict.LOST if absences >= _TIMES else AnswerVerdict.WAIT
    return verdict, replace(memory, absences=absences)


def _has(installed: Sequence[InstalledBackend], backend: str) -> bool:
    """Builds are listed by names of their own, such as `cuda12-llama-cpp`, which end with what they are."""
    wanted = backend.rpartition("@")[2].lower()
    return any(f"-{one.name.lower()}".endswith(f"-{wanted}") for one in installed)
