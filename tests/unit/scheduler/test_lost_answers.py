"""An answer counts as lost only by what its worker says, and that twice."""

import pytest

from remuda.core.ids import BootId, ReplicaKey
from remuda.ops.model import OpId
from remuda.scheduler.worker_calls import AnswerMemory, AnswerVerdict, Lists, by_lists, by_report
from remuda.wire.backends import InstalledBackend
from remuda.wire.models import RunningModel
from remuda.wire.nodes import Report, Work

OP = OpId("load-1")
KEY = ReplicaKey("qwen", 1)
THERE = (InstalledBackend(name="cuda12-llama-cpp"),)


def told(sequence: int, *in_hand: str) -> Report:
    work = tuple(Work(op_id=op, attempt=1) for op in in_hand)
    return Report(boot_id=BootId("b"), sequence=sequence, work=work)


def verdict_of_reports(*reports: Report, known: int | None = None) -> AnswerVerdict:
    verdict, memory = AnswerVerdict.WAIT, AnswerMemory(known=known)
    for report in reports:
        verdict, memory = by_report(report, OP, memory)
    return verdict


def verdict_of_lists(*lists: Lists) -> AnswerVerdict:
    verdict, memory = AnswerVerdict.WAIT, AnswerMemory()
    for one in lists:
        verdict, memory = by_lists(one, KEY, "llama-cpp", memory)
    return verdict


@pytest.mark.parametrize(
    ("reports", "verdict"),
    [
        ((told(1),), AnswerVerdict.WAIT),
        ((told(1), told(1)), AnswerVerdict.WAIT),
        ((told(1), told(2)), AnswerVerdict.ASK_AGAIN),
        ((told(1, OP), told(2, OP), told(3, OP)), AnswerVerdict.WAIT),
        ((told(1, "other"), told(2, "other")), AnswerVerdict.ASK_AGAIN),
    ],
)
def test_two_reports_that_have_nothing_of_it_in_hand_tell_that_the_answer_is_lost(
    reports: tuple[Report, ...], verdict: AnswerVerdict
) -> None:
    assert verdict_of_reports(*reports) is verdict


def test_report_from_before_it_was_asked_does_not_count() -> None:
    assert verdict_of_reports(told(1), told(2), known=1) is AnswerVerdict.WAIT


def test_process_that_runs_is_asked_for_again() -> None:
    runs = RunningModel(model_id="qwen", replica_index=1)
    assert verdict_of_lists(Lists([runs], THERE)) is AnswerVerdict.ASK_AGAIN


@pytest.mark.parametrize("other", [("qwen", 0), ("gemma", 1)])
def test_process_that_is_absent_twice_is_lost_whatever_else_runs(other: tuple[str, int]) -> None:
    lists = Lists([RunningModel(model_id=other[0], replica_index=other[1])], THERE)
    assert verdict_of_lists(lists) is AnswerVerdict.WAIT
    assert verdict_of_lists(lists, lists) is AnswerVerdict.LOST


def test_backend_that_is_not_there_yet_may_be_on_its_way() -> None:
    others = (InstalledBackend(name="cuda12-vllm"),)
    assert verdict_of_lists(*[Lists([], others)] * 9) is AnswerVerdict.WAIT


def test_bytes_that_move_are_work() -> None:
    assert verdict_of_lists(*(Lists([], THERE, moved) for moved in (1.0, 2.0, 3.0))) is AnswerVerdict.WAIT


def test_absences_count_in_a_row() -> None:
    absent = Lists([], THERE, 1.0)
    assert verdict_of_lists(absent, absent, Lists([], THERE, 2.0), absent) is AnswerVerdict.WAIT


@pytest.mark.parametrize("name", ["llama-cpp", "cpu-llama-cpp", "CUDA12-llama-cpp"])
def test_backend_is_known_by_the_names_of_its_builds(name: str) -> None:
    lists = Lists([], (InstalledBackend(name=name),))
    assert verdict_of_lists(lists, lists) is AnswerVerdict.LOST
