"""What doctor concludes, in words, and how the whole is shown."""

import hashlib
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from remuda.cli import findings
from remuda.cli.findings import Finding, Holder, Level, page, verdict
from remuda.cli.ops_state import title
from remuda.gateway.attention import FRONTENDS, load_again, shown_status
from remuda.wire.admin import Unready, UnreadyPart
from remuda.wire.console import AttentionItem, AttentionLevel
from remuda.wire.nodes import NodeFacts, NodeView
from remuda.wire.operations import OpView, ProblemView
from remuda.wire.serving import UnusableModel
from remuda.worker.hardware.model import Gpu, Hardware
from tests.unit.cli.ops_views import NOON, a_step, an_op

HARDWARE = Hardware("amd64", "linux", "", 8, 1, 1, 1, 1, (), "", "default", ())
GPU = Gpu("nvidia", "H200", 140 << 30, None)


def levels(*found: Finding) -> list[tuple[str, Level]]:
    return [(finding.check, finding.level) for finding in found]


def test_equal_versions_are_well_and_a_difference_is_named() -> None:
    assert findings.versions("1.0", "3.12.1", "1.0").level is Level.OK
    assert findings.versions("1.0", "3.12.1", None).level is Level.OK

    other = findings.versions("1.0", "3.12.1", "2.0")

    assert other.level is Level.WARNING
    assert "Remuda 1.0" in other.message
    assert "Remuda 2.0" in other.message


def test_object_storage_that_cannot_be_used_is_a_warning() -> None:
    assert findings.storage("") == []
    (found,) = findings.storage("access denied: bucket fleet")
    assert (found.check, found.level) == ("storage", Level.WARNING)
    assert "access denied: bucket fleet" in found.message


def failed_install(model: str, error: str, hours_ago: float = 1, **more: Any) -> OpView:
    ended = NOON - timedelta(hours=hours_ago)
    name = hashlib.sha256(f"{model}{hours_ago}".encode()).hexdigest()
    facts = {"kind": "install_model", "status": "failed", "finished_at": ended, **more}
    return an_op(id=f"{name[:8]}-0", model=model, error=error, **facts)


def test_a_failed_install_is_named_until_it_is_dismissed() -> None:
    failed = failed_install("qwen", "the hub has no such repository")
    put_away = failed_install("other", "the disk is full", dismissed=True)
    (found,) = findings.failed_installs([failed, put_away], (), NOON)
    assert (found.check, found.level) == ("models", Level.WARNING)
    assert found.message == "qwen could not be installed: the hub has no such repository"
    assert found.remedy.count(failed.id[:8]) == 2
    assert "remuda ops dismiss" in found.remedy


def test_failed_installs_are_told_once_for_each_cause() -> None:
    away = "127.0.0.1:{} cannot be reached (unreachable since 0{}:00 UTC)"
    ops = [
        failed_install("a", away.format(1, 9)),
        failed_install("a", "an older reason", 2),
        failed_install("b", away.format(2, 8), 3),
        failed_install("there", "it came by another way since"),
        failed_install("old", "days ago", 25),
        failed_install("full", "the disk is full", 4),
    ]
    shared, full = findings.failed_installs(ops, {"there"}, NOON)
    assert shared.message == f"a, b could not be installed: {away.format(1, 9)}"
    assert shared.remedy.endswith(f"remuda ops dismiss {ops[0].id[:8]} {ops[2].id[:8]} puts it away")
    assert full.message == "full could not be installed: the disk is full"


@pytest.mark.parametrize(
    ("free", "level"), [(100 << 30, Level.OK), (1 << 30, Level.WARNING), (1 << 20, Level.PROBLEM)]
)
def test_a_disk_is_judged_by_what_is_free(free: int, level: Level) -> None:
    assert findings.disk("/data", free).level is level


@pytest.mark.parametrize(
    ("ahead_s", "words"), [(5, "matches"), (-5, "matches"), (60, "1m ahead of"), (-3600, "1h behind")]
)
def test_clocks_more_than_five_seconds_apart_are_told(ahead_s: int, words: str) -> None:
    found = findings.clock(timedelta(seconds=ahead_s))

    assert words in found.message
    assert found.level is (Level.OK if abs(ahead_s) <= 5 else Level.WARNING)


def test_a_ready_frontend_vouches_for_store_and_bus() -> None:
    assert levels(*findings.readiness(None)) == [("store", Level.OK), ("bus", Level.OK)]


def test_the_reasons_of_an_unready_frontend_are_told_apart() -> None:
    store = UnreadyPart(part="store", reason="the database x cannot be used: gone")
    bus = UnreadyPart(part="bus", reason="the bus is down: refused; open that port")
    unready = Unready(reason=f"{store.reason}; {bus.reason}", parts=(store, bus))

    assert levels(*findings.readiness(unready)) == [("store", Level.PROBLEM), ("bus", Level.PROBLEM)]
    older = unready.model_copy(update={"parts": ()})
    assert [one.message for one in findings.readiness(older)] == [
        f"the frontend is not ready: {unready.reason}"
    ]


@pytest.mark.parametrize(
    ("trouble", "holder", "level", "words"),
    [
        ("", None, Level.OK, "free"),
        ("port 1 on h is in use", Holder(7, "remuda", True), Level.OK, "Remuda itself (process 7)"),
        ("port 1 on h is in use", Holder(7, "nginx", False), Level.PROBLEM, "by nginx (process 7)"),
        ("port 1 on h is in use", None, Level.PROBLEM, "port 1 on h is in use"),
    ],
)
def test_a_port_is_well_when_free_or_ours(
    trouble: str, holder: Holder | None, level: Level, words: str
) -> None:
    found = findings.port("API", 1, trouble, holder, "--port")

    assert found.level is level
    assert words in found.message
    assert level is Level.OK or "--port" in found.remedy


def test_a_machine_without_gpu_is_well_unless_its_driver_fails() -> None:
    assert levels(*findings.gpu(HARDWARE)) == [("gpu", Level.OK)]

    found = findings.gpu(replace(HARDWARE, problems=("The driver is too old.",)))

    assert [(finding.level, finding.message) for finding in found] == [
        (Level.WARNING, "The driver is too old.")
    ]


def test_gpus_are_named_with_memory_and_driver() -> None:
    hardware = replace(HARDWARE, gpus=(GPU,), driver_version="570", capability="cuda")

    assert findings.gpu(hardware)[0].message == "H200 (140 GiB), driver 570; builds for cuda will be used"


def node(
    name: str, status: str, *reasons: str, unreachable: bool = False, version: str = "0.1.0"
) -> NodeView:
    facts = NodeFacts(reasons=reasons, unreachable=unreachable, version=version)
    return NodeView(id=name, name=name, status=status, remuda=facts)


def test_nodes_that_are_not_healthy_are_told_with_their_reasons() -> None:
    found = findings.fleet(
        [node("a", "healthy"), node("b", "offline", "not heard"), node("c", "pending", "waits")]
    )

    assert levels(*found) == [("nodes", Level.PROBLEM), ("nodes", Level.WARNING), ("nodes", Level.OK)]
    assert found[0].message == "b is offline: not heard"
    assert found[2].message == "1 of 3 are healthy"
    assert levels(*findings.fleet([node("a", "healthy")])) == [("nodes", Level.OK)]


def test_a_node_that_is_heard_and_cannot_be_reached_is_a_problem_and_not_called_healthy() -> None:
    found = findings.fleet([node("a", "healthy", "port closed", unreachable=True), node("b", "healthy")])

    assert levels(*found) == [("nodes", Level.PROBLEM), ("nodes", Level.OK)]
    assert [one.message for one in found] == ["a is unreachable: port closed", "1 of 2 are healthy"]


def test_a_localai_node_whose_http_port_cannot_be_reached_is_a_warning() -> None:
    found = findings.fleet([node("a", "healthy", "port closed", unreachable=True, version="")])

    assert levels(*found) == [("nodes", Level.WARNING)]


def test_a_node_that_left_the_fleet_is_no_problem_and_not_counted() -> None:
    gone = NodeView(
        id="c", name="c", status="offline", remuda=NodeFacts(left=True, reasons=("left the fleet",))
    )

    found = findings.fleet([node("a", "healthy"), gone])

    assert [(one.level, one.message) for one in found] == [(Level.OK, "1 of 1 are healthy")]
    assert shown_status(gone) == "left"


def test_own_worker_that_does_not_run_is_a_problem_once_it_has_failed() -> None:
    assert findings.own_worker_stopped(7, "").level is Level.WARNING
    failed = findings.own_worker_stopped(7, "the disk of /data is full")
    assert failed.level is Level.PROBLEM
    assert failed.message == "does not run, though remuda up does (process 7): the disk of /data is full"


def test_a_healthy_node_with_something_to_decide_about_is_a_warning() -> None:
    found = findings.fleet([node("a", "healthy", "another machine asks to take its place")])

    assert levels(*found) == [("nodes", Level.WARNING), ("nodes", Level.OK)]
    assert found[1].message == "1 of 1 are healthy"


def test_files_that_cannot_be_used_as_models_are_problems() -> None:
    found = findings.models([UnusableModel(source="/models/a.yaml", reason="line 1: it is not YAML")])
    assert levels(*found) == [("models", Level.PROBLEM)]
    assert found[0].message == "/models/a.yaml cannot be used: line 1: it is not YAML"


def test_an_empty_fleet_is_a_warning() -> None:
    assert levels(*findings.fleet([])) == [("nodes", Level.WARNING)]


FOUND = [
    findings.ok("clock", "matches"),
    findings.warning("gpu", "old driver", "upgrade it"),
    findings.problem("store", "gone", "start it"),
]


def test_the_page_shows_each_finding_with_what_to_do_and_the_sum() -> None:
    output = Console(file=StringIO(), width=80, markup=False)
    output.print(page(FOUND))

    assert isinstance(output.file, StringIO)
    lines = [line.split() for line in output.file.getvalue().splitlines()]
    assert ["problem", "store", "gone"] in lines
    assert ["->", "start", "it"] in lines
    assert " ".join(lines[-1]) == "1 problem and 1 warning"


def test_the_verdict_counts() -> None:
    assert verdict(FOUND[:1]) == "all is well"
    assert verdict(FOUND[:2]) == "no problems, 1 warning"


def test_operations_whose_attempts_keep_failing_are_told_with_the_reason() -> None:
    refused = ProblemView(code="pull_failed", message="the registry answered 401", hint="log in there")
    op = an_op(
        a_step("attic", "pending", failures=3, problem=refused),
        a_step("cellar", "pending", failures=1, problem=refused),
        a_step("shed", "running", failures=0),
        a_step("barn", "failed", failures=2, problem=refused),
        kind="upgrade",
    )
    often, once = findings.operations([op], [])

    assert (often.check, often.level, once.level) == ("operations", Level.PROBLEM, Level.WARNING)
    assert often.message == (
        "upgrade echo on attic has failed 3 times and is being retried: the registry answered 401"
    )
    assert often.remedy == "log in there; remuda ops show 3f2a1b0c says more"
    assert verdict([often]) != "all is well"


def test_an_install_that_waits_for_its_source_is_told_with_since_when_and_what_to_do() -> None:
    told = "hub.test:443 cannot be reached (unreachable since 12:00 UTC, retried until 13:00 UTC)"
    away = ProblemView(code="registry_failed", message=told, hint="see that it can be reached")
    ahead = ProblemView(code="registry_failed", message="cut off (36 MiB of it came and is kept)")
    facts = {"kind": "install_model", "model": "tiny", "status": "retrying"}
    step = a_step("frontends", "pending", failures=0, problem=away).model_copy(update={"node_id": FRONTENDS})
    [found] = findings.operations([an_op(step, **facts)], [])
    assert (found.check, found.level) == ("operations", Level.WARNING)
    assert found.message == f"{title(an_op(**facts))} waits: {told}"
    assert found.remedy == (
        "see that it can be reached; remuda ops retry 3f2a1b0c tries at once, "
        "remuda ops cancel 3f2a1b0c ends it"
    )
    for other in (
        an_op(step, **{**facts, "status": "paused"}),
        an_op(step.model_copy(update={"problem": ahead}), **facts),
        an_op(step.model_copy(update={"state": "running"}), **facts),
    ):
        assert findings.operations([other], []) == []
    again = an_op(step.model_copy(update={"failures": 1}), **facts)
    assert len(findings.operations([again], [])) == 1, "it is not told twice"


def test_a_worker_that_does_not_answer_is_one_problem_and_nothing_is_said_of_heartbeats_to_come() -> None:
    silence = ProblemView(code="no_responders", message="its worker does not answer on the bus")
    op = an_op(a_step("attic", "pending", failures=2, problem=silence))
    [step] = op.steps or ()
    healthy = NodeView(id=step.node_id, name="attic", status="healthy", remuda=NodeFacts(heard_seconds_ago=7))
    offline = NodeView(id=step.node_id, name="attic", status="offline")

    [told] = findings.operations([op], [healthy])
    assert told.message.endswith("its worker does not answer on the bus; its last heartbeat came 7 s ago")
    assert findings.operations([op], [offline]) == [], "the node is a finding of its own"


def test_what_is_left_of_a_full_disk_is_told_in_a_unit_that_tells_something() -> None:
    assert findings.disk("/data", 24_746_394).message == "the disk of /data is full: only 23.6 MiB free"


def test_what_needs_a_person_is_told_once_with_the_command_that_helps() -> None:
    def item(code: str, level: AttentionLevel, entity_id: str, name: str) -> AttentionItem:
        words = f"{code} of {name}"
        return AttentionItem(
            id=f"{code}/{entity_id}", code=code, level=level, entity="", entity_id=entity_id,
            entity_name=name, message=words,
        )  # fmt: skip

    items = [
        item("disk_full", "problem", "n-1", "attic"),
        item("backend_drift", "warning", "echo", "echo"),
        item("operation_failed", "problem", "3f2a1b0c-1", "echo"),
        item("operation_failed", "problem", "told", "qwen"),
        item("node_offline", "problem", "n-2", "cellar"),
    ]
    full, drift, failed = findings.attention(items, {"told"})
    assert (full.check, full.level) == ("nodes", Level.PROBLEM)
    assert full.remedy.startswith("remuda nodes disk attic")
    assert (drift.level, drift.remedy) == (Level.WARNING, "remuda backends upgrade echo")
    assert (failed.check, failed.level) == ("operations", Level.WARNING)
    assert "remuda ops retry 3f2a1b0c" in failed.remedy


def test_of_a_failed_load_another_is_advised_and_no_retry() -> None:
    item = AttentionItem(
        id="1", code="operation_failed", level="problem", entity="operation", entity_id="3f2a1b0c-1",
        entity_name="my own", message="load my own failed: no answer", action=load_again("my own"),
    )  # fmt: skip
    (found,) = findings.attention([item], ())
    assert found.remedy == (
        "remuda models load 'my own' tries again; remuda ops dismiss 3f2a1b0c puts it away"
    )
