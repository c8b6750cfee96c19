"""Verdicts: approval, drain and reachability are separate facts; the wire status is derived from them."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import BootId
from remuda.fleet.health import (
    Fleet,
    ListeningPeriod,
    ListeningPeriods,
    NodeStatus,
    Reachability,
    joining,
    judge,
    reasons,
    uncommandable,
    wire_status,
)
from remuda.fleet.model import BusTroubleKind, StoredBusTrouble, StoredReport
from tests.support.nodes import NOON, THRESHOLDS, node

SECOND = timedelta(seconds=1)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


LATER = at(10_000)


def spans() -> st.SearchStrategy[list[ListeningPeriod]]:
    edges = st.tuples(st.integers(0, 500), st.integers(0, 100))
    return st.lists(edges.map(lambda e: ListeningPeriod(at(e[0]), at(e[0] + e[1]))), max_size=8)


def test_silence_counts_only_while_someone_listens() -> None:
    hearing = ListeningPeriods.of([ListeningPeriod(at(0), at(10)), ListeningPeriod(at(100), at(105))])

    assert hearing.silence(at(4), LATER) == 11 * SECOND


def test_silence_of_a_long_dead_node_survives_a_restart_of_the_frontend() -> None:
    hearing = ListeningPeriods.of([ListeningPeriod(at(0), at(300)), ListeningPeriod(at(5000), at(5001))])

    assert hearing.silence(at(10), LATER) > timedelta(seconds=60)


def test_time_heard_by_two_frontends_counts_once() -> None:
    assert (
        ListeningPeriods.of([ListeningPeriod(at(0), at(10)), ListeningPeriod(at(5), at(15))]).silence(
            at(0), LATER
        )
        == 15 * SECOND
    )


def test_nobody_listening_means_no_silence() -> None:
    assert ListeningPeriods.of([]).silence(NOON, LATER) == timedelta()


def test_what_was_heard_before_the_clock_was_set_back_is_not_held_against_a_heartbeat_since() -> None:
    hearing = ListeningPeriods.of([ListeningPeriod(at(0), at(3600))])

    assert hearing.silence(at(100), now=at(107)) == 7 * SECOND


@given(spans(), st.integers(0, 600))
def test_silence_is_never_longer_than_the_time_that_passed(heard: list[ListeningPeriod], last: int) -> None:
    latest = max((span.until for span in heard), default=at(last))

    assert (
        timedelta()
        <= ListeningPeriods.of(heard).silence(at(last), LATER)
        <= max(latest - at(last), timedelta())
    )


@given(spans(), st.integers(0, 600), st.integers(0, 100))
def test_a_later_heartbeat_never_makes_silence_longer(
    heard: list[ListeningPeriod], last: int, later: int
) -> None:
    hearing = ListeningPeriods.of(heard)

    assert hearing.silence(at(last + later), LATER) <= hearing.silence(at(last), LATER)


@given(spans(), spans(), st.integers(0, 600))
def test_another_frontend_can_only_add_to_what_was_heard(
    mine: list[ListeningPeriod], other: list[ListeningPeriod], last: int
) -> None:
    assert ListeningPeriods.of(mine).silence(at(last), LATER) <= ListeningPeriods.of(mine + other).silence(
        at(last), LATER
    )


@given(st.permutations([ListeningPeriod(at(n * 7), at(n * 7 + n)) for n in range(9)]))
def test_order_of_spans_is_irrelevant(shuffled: list[ListeningPeriod]) -> None:
    assert ListeningPeriods.of(shuffled) == ListeningPeriods.of(sorted(shuffled))


CUT_OFF = StoredBusTrouble(BootId("boot-1"), 3, "no answer from nats://10.0.0.1:4222; open that port")
REPORT = StoredReport(BootId("boot-1"), 1, "{}")
facts = st.fixed_dictionaries(
    {name: st.booleans() for name in ("approved", "drained", "leaving", "departed")}
)
silences = st.timedeltas(timedelta(), timedelta(days=30))


@pytest.mark.parametrize(
    ("silent_s", "expected"),
    [(0, "up"), (29.9, "up"), (30, "silent"), (59.9, "silent"), (60, "gone"), (86400, "gone")],
)
def test_thresholds_decide_when_silence_means_something(silent_s: float, expected: str) -> None:
    assert judge(node(), timedelta(seconds=silent_s), THRESHOLDS) == expected


@pytest.mark.parametrize(
    ("changes", "reachability", "status"),
    [
        ({}, Reachability.UP, NodeStatus.HEALTHY),
        ({}, Reachability.SILENT, NodeStatus.UNHEALTHY),
        ({}, Reachability.GONE, NodeStatus.OFFLINE),
        ({}, Reachability.DEPARTED, NodeStatus.OFFLINE),
        ({"drained": True}, Reachability.UP, NodeStatus.DRAINING),
        ({"leaving": True}, Reachability.UP, NodeStatus.DRAINING),
        ({"drained": True}, Reachability.GONE, NodeStatus.OFFLINE),
        ({"approved": False, "drained": True}, Reachability.GONE, NodeStatus.PENDING),
    ],
)
def test_wire_status_table(changes: dict[str, bool], reachability: Reachability, status: NodeStatus) -> None:
    assert wire_status(node(**changes), reachability) is status


@given(facts, silences)
def test_an_unapproved_node_is_pending_whatever_else_is_true(
    changes: dict[str, bool], silence: timedelta
) -> None:
    unapproved = node(**{**changes, "approved": False})

    assert wire_status(unapproved, judge(unapproved, silence, THRESHOLDS)) is NodeStatus.PENDING


@given(facts, silences, silences)
def test_more_silence_never_makes_a_node_better(
    changes: dict[str, bool], silence: timedelta, more: timedelta
) -> None:
    order = [Reachability.UP, Reachability.SILENT, Reachability.GONE, Reachability.DEPARTED]
    one = node(**changes)

    assert order.index(judge(one, silence, THRESHOLDS)) <= order.index(judge(one, silence + more, THRESHOLDS))


@given(facts, st.sampled_from([None, CUT_OFF]), st.sampled_from([None, REPORT]), silences)
def test_every_no_has_a_reason_and_every_yes_has_none(
    changes: dict[str, bool],
    trouble: StoredBusTrouble | None,
    report: StoredReport | None,
    silence: timedelta,
) -> None:
    one = node(**changes, bus_trouble=trouble, report=report)
    cut_off = uncommandable(one)
    reachability = judge(one, silence, THRESHOLDS, cut_off)

    healthy = wire_status(one, reachability) is NodeStatus.HEALTHY
    assert healthy == (not reasons(one, reachability, silence, cut_off))


def test_a_node_that_cannot_be_commanded_is_unhealthy_at_once_and_says_why() -> None:
    one = node(bus_trouble=CUT_OFF)
    cut_off = uncommandable(one)
    reachability = judge(one, timedelta(), THRESHOLDS, cut_off)

    assert wire_status(one, reachability) is NodeStatus.UNHEALTHY
    assert reasons(one, reachability, timedelta(), cut_off) == (
        "its worker is not connected to the bus: no answer from nats://10.0.0.1:4222; open that port",
    )


def test_what_a_worker_says_of_the_bus_reads_as_one_sentence() -> None:
    why = "cannot connect to the bus at 10.0.0.1:4222 (no answer); open that port"
    told = replace(CUT_OFF, reason=why, kind=BusTroubleKind.CANNOT_CONNECT)
    assert uncommandable(node(bus_trouble=told)) == f"its worker {why}"
    other = replace(CUT_OFF, reason=why)
    assert uncommandable(node(bus_trouble=other)) == f"its worker is not connected to the bus: {why}"


def test_a_node_that_cannot_be_commanded_still_goes_stale_and_is_then_called_silent_only() -> None:
    silence = THRESHOLDS.offline_after
    one = node(bus_trouble=CUT_OFF)
    assert judge(one, silence, THRESHOLDS, "cut off") is Reachability.GONE
    why = reasons(one, Reachability.GONE, silence, "cut off")
    assert why == ("no heartbeat for 60 s; check its power, its network and its worker's log",)


@pytest.mark.parametrize(
    ("boot", "sequence", "cut_off"), [("boot-1", 2, True), ("boot-1", 4, False), ("boot-0", 9, True)]
)
def test_only_a_later_report_of_the_same_boot_ends_the_trouble(
    boot: str, sequence: int, cut_off: bool
) -> None:
    one = node(bus_trouble=CUT_OFF, report=StoredReport(BootId(boot), sequence, "{}"))

    assert bool(one.cut_off) == cut_off


def test_the_trouble_of_an_earlier_boot_is_over() -> None:
    assert node(boot_id=BootId("boot-2"), bus_trouble=CUT_OFF).cut_off == ""


@pytest.mark.parametrize(("since_s", "expected"), [(0, True), (59, True), (60, False)])
def test_a_worker_that_has_begun_to_connect_is_joining_for_a_minute(since_s: int, expected: bool) -> None:
    one = node(version="1", report=None, registered_at=at(0))
    standing = Fleet(at(since_s), ListeningPeriods(), [one]).standing(one, THRESHOLDS)
    assert (standing.status, standing.joining) == (NodeStatus.UNHEALTHY, expected)


@given(facts, silences, st.sampled_from(("", "cut off")))
def test_only_what_is_unhealthy_is_joining(one: dict[str, bool], silence: timedelta, cut_off: str) -> None:
    shown = node(version="1", report=None, registered_at=at(0), **one)
    reachability = judge(shown, silence, THRESHOLDS, cut_off)
    if joining(shown, reachability, at(1), cut_off):
        assert wire_status(shown, reachability) is NodeStatus.UNHEALTHY
        assert not cut_off
