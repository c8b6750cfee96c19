"""Which nodes an operation is for, what each is to get, and why some are left out."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Conflict, Invalid, NotFound, Problem
from remuda.core.ids import BootId
from remuda.fleet.model import NodeType
from remuda.ops.external_sources import external
from remuda.ops.failures import START_FAILED
from remuda.ops.model import Kind, Observation, OpId, RollOut, Source, State, Wish
from remuda.ops.ports import Build, Pin
from remuda.ops.selection import Selection, parse_selector
from remuda.ops.steps import advance
from remuda.ops.targets import (
    ConcreteBackend,
    PlanningContext,
    WantedOperation,
    pinned,
    proposal,
    starting_again,
)
from remuda.wire.nodes import InstalledArtifact
from tests.unit.ops.build import at
from tests.unit.ops.fleet import NEW, READINGS, a_node, artifact, planned, steps

NOT_STARTED = Problem(START_FAILED, "installed, but it did not start: exit code 1", retryable=True)


def named(*names: str) -> Selection:
    return Selection(names=names)


# Who is meant.


def test_a058_a_node_that_waits_for_approval_is_no_target() -> None:
    assert steps(planned("llama-cpp", a_node("in"), a_node("out", approved=False))).keys() == {"in"}


def test_a059_an_agent_is_no_target() -> None:
    agent = a_node("agent", node_type=NodeType.AGENT)
    assert steps(planned("llama-cpp", a_node("in"), agent)).keys() == {"in"}


def test_a060_named_nodes_and_no_others_are_meant() -> None:
    nodes = [a_node(f"n{number}") for number in range(3)]
    assert steps(planned("llama-cpp", *nodes, selection=named("n1"))).keys() == {"n1"}
    assert steps(planned("llama-cpp", *nodes)).keys() == {"n0", "n1", "n2"}


def test_a073_an_id_limits_an_operation_to_its_node() -> None:
    nodes = [a_node("n0"), a_node("n1")]
    assert steps(planned("llama-cpp", *nodes, selection=named("id-n1"))).keys() == {"n1"}


def test_labels_select_the_nodes_that_have_all_of_them() -> None:
    nodes = [a_node("a", labels={"room": "attic", "os": "x"}), a_node("b", labels={"room": "attic"})]
    chosen = planned("llama-cpp", *nodes, selection=Selection(selector="room=attic, os=x"))
    assert steps(chosen).keys() == {"a"}


@pytest.mark.parametrize("selector", ["room", "=attic", "room=attic,,", "room=attic,os", "a=1,a=2", "room>2"])
def test_a_malformed_selector_is_refused_with_what_is_wrong(selector: str) -> None:
    with pytest.raises(Invalid, match="selector"):
        planned("llama-cpp", a_node(), selection=Selection(selector=selector))


@given(st.text(max_size=40))
def test_any_selector_is_read_or_refused(text: str) -> None:
    wanted = {"refused": ""}
    with suppress(Invalid):
        wanted = dict(parse_selector(text))
    assert all(wanted)


def test_an_unknown_node_is_named_with_those_it_may_have_meant() -> None:
    with pytest.raises(NotFound, match=r"gpu-11.*did you mean gpu-1"):
        planned("llama-cpp", a_node("gpu-1"), selection=named("gpu-11"))


def test_a_pending_node_asked_for_by_name_is_refused_with_the_way_to_let_it_in() -> None:
    with pytest.raises(Conflict, match="remuda nodes approve out"):
        planned("llama-cpp", a_node("out", approved=False), selection=named("out"))


@pytest.mark.parametrize(
    ("selection", "words"),
    [(Selection(), "no nodes yet"), (Selection(selector="a=b"), "no nodes yet")],
)
def test_an_operation_on_no_node_at_all_is_refused(selection: Selection, words: str) -> None:
    with pytest.raises(Conflict, match=words):
        planned("llama-cpp", selection=selection)


def test_labels_that_no_node_has_are_refused() -> None:
    with pytest.raises(Conflict, match="no node has the labels a=b"):
        planned("llama-cpp", a_node(), selection=Selection(selector="a=b"))


def test_names_and_labels_together_are_refused() -> None:
    with pytest.raises(Invalid, match="not both"):
        planned("llama-cpp", a_node(), selection=Selection(("gpu-1",), "a=b"))


def test_nodes_that_are_away_are_meant_too() -> None:
    away = [a_node("gone", silent_s=300), a_node("drained", drained=True)]
    found = steps(planned("llama-cpp", *away))
    assert {name: step.state for name, step in found.items()} == dict.fromkeys(
        ("gone", "drained"), State.PENDING
    )


# What each is to get.


def test_each_node_gets_the_build_for_its_hardware_whose_own_name_comes_first() -> None:
    nodes = [a_node("cpu"), a_node("gpu", capability="nvidia")]
    found = steps(planned("llama-cpp", *nodes))
    assert found["cpu"].goal.names == ("cpu-llama-cpp", "llama-cpp")
    assert found["gpu"].goal.names == ("cuda12-llama-cpp", "llama-cpp")


def test_a_build_asked_for_by_its_own_name_is_not_met_by_another_of_its_alias() -> None:
    found = steps(planned("cpu-llama-cpp", a_node(), selection=named("gpu-1")))
    assert found["gpu-1"].goal.names == ("cpu-llama-cpp",)


def test_a163_a_node_that_can_run_no_build_is_skipped_with_the_reason_before_anything_is_sent() -> None:
    found = steps(planned("vllm", a_node("cpu"), a_node("gpu", capability="nvidia")))
    assert (found["cpu"].state, found["gpu"].state) == (State.SKIPPED, State.PENDING)
    assert "no build for this machine, which reports default" in found["cpu"].reason


def test_a163_an_image_without_a_build_for_the_platform_of_a_node_skips_that_node() -> None:
    arm = a_node("arm", labels={"node.arch": "arm64"})
    drafted = planned(
        "lone", arm, a_node("amd", labels={"node.arch": "amd64"}), selection=named("arm", "amd")
    )
    uri = "registry.example/backends:lone"
    assert drafted.builds == {Build(uri, "linux/arm64"), Build(uri, "linux/amd64")}
    pins = {Build(uri, "linux/arm64"): Pin(missing="no build"), Build(uri, "linux/amd64"): Pin(NEW)}
    found = steps(pinned(drafted, pins))
    assert (found["arm"].state, found["arm"].reason) == (State.SKIPPED, "no build")
    assert (found["amd"].state, found["amd"].goal.digest) == (State.PENDING, NEW)


def test_a_platform_that_is_not_known_excludes_nothing() -> None:
    found = steps(planned("arm64-only", a_node("unknown"), selection=named("unknown")))
    assert found["unknown"].state is State.PENDING
    with pytest.raises(Conflict, match="is for arm64"):
        planned("arm64-only", a_node(labels={"node.arch": "amd64"}), selection=named("gpu-1"))


def test_an_operation_that_no_node_can_do_is_refused_with_every_reason() -> None:
    with pytest.raises(Conflict, match=r"a: vllm has no build .*; b: vllm has no build"):
        planned("vllm", a_node("a"), a_node("b"))


def test_an_unpinned_step_is_legal() -> None:
    assert steps(pinned(planned("llama-cpp", a_node()), {}))["gpu-1"].goal.digest == ""


def test_an_unknown_backend_is_refused_with_names_it_may_have_meant() -> None:
    with pytest.raises(NotFound, match=r"no gallery has a backend called lama-cpp.*did you mean llama-cpp"):
        planned("lama-cpp", a_node())


def test_a076_a_build_for_certain_hardware_is_refused_for_all_with_the_meta_alternative() -> None:
    with pytest.raises(ConcreteBackend) as refused:
        planned("cuda12-llama-cpp", a_node("gpu", capability="nvidia"))
    assert (refused.value.code, refused.value.http_status) == ("concrete_backend_requires_target", 409)
    assert refused.value.meta_alternative == "llama-cpp"


def test_a076_a_build_without_a_meta_backend_is_refused_for_all_too() -> None:
    with pytest.raises(ConcreteBackend) as refused:
        planned("lone", a_node())
    assert refused.value.meta_alternative == ""


def test_programs_of_peers_have_a_build_installed_on_the_nodes_it_fits() -> None:
    nodes = (a_node("cpu"), a_node("gpu", capability="nvidia"))
    wanted = WantedOperation(
        Kind.INSTALL, Source("cuda12-llama-cpp"), Selection(), RollOut(16), concrete_for_all=True
    )
    found = steps(proposal(wanted, PlanningContext(nodes, READINGS), OpId("op-1")))
    assert (found["cpu"].state, found["gpu"].state) == (State.SKIPPED, State.PENDING)


@pytest.mark.parametrize("backend", ["mine@cuda12-llama-cpp", "echo", "llama-cpp"])
def test_a_gallery_id_what_fits_everywhere_and_a_meta_backend_go_to_all(backend: str) -> None:
    found = steps(planned(backend, a_node("gpu", capability="nvidia")))
    assert found["gpu"].state is State.PENDING


def test_workers_are_sent_the_bare_name_with_the_named_gallery_first() -> None:
    step = steps(planned("remuda@echo", a_node()))["gpu-1"]
    assert step.source.backend == "echo"
    assert [one["name"] for one in json.loads(step.source.galleries)] == ["remuda", "mine"]


# Workers that are not ours.


def test_localais_workers_get_no_gallery_that_only_we_can_read() -> None:
    found = steps(planned("llama-cpp", a_node("ours"), a_node("theirs", foreign=True)))
    assert [one["name"] for one in json.loads(found["theirs"].source.galleries)] == ["mine"]
    assert [one["name"] for one in json.loads(found["ours"].source.galleries)] == ["mine", "remuda"]


def test_what_ships_with_remuda_is_skipped_on_localais_workers() -> None:
    found = steps(planned("echo", a_node("ours"), a_node("theirs", foreign=True)))
    assert found["theirs"].state is State.SKIPPED
    assert "ships with Remuda" in found["theirs"].reason


# From outside the galleries.


def test_a075_a_source_outside_the_galleries_travels_with_its_names() -> None:
    uri = "registry.example/me/my-backend:v1"
    step = steps(planned("", a_node(), uri=uri, name="mine-too", alias="other"))["gpu-1"]
    assert (step.source.uri, step.source.name, step.source.alias) == (uri, "mine-too", "other")
    assert (step.source.backend, step.goal.names) == ("mine-too", ("mine-too", "other"))


def test_an_image_without_a_name_is_called_after_its_repository() -> None:
    step = steps(planned("", a_node(), uri="oci://registry.example/me/my-backend:v1@sha256:" + "a" * 64))
    assert step["gpu-1"].source.name == "my-backend"


@pytest.mark.parametrize(
    "uri", ["file:///etc", "/srv/backend", "./x/y", "../x", "~/x", "ocifile:///srv/image.tar", "ocifile:x"]
)
def test_places_on_the_nodes_disks_are_refused_unless_a_setting_allows_them(uri: str) -> None:
    with pytest.raises(Invalid, match="own disk"):
        planned("", a_node(), uri=uri, name="x")
    assert steps(planned("", a_node(), uri=uri, name="x", local_sources=True))["gpu-1"].source.uri == uri


@pytest.mark.parametrize(
    "uri", ["nothing", "ftp://x/y", "javascript:alert(1)", "a b/c", "-x/y", "http:", "http://"]
)
def test_what_is_no_place_is_refused(uri: str) -> None:
    with pytest.raises(Invalid):
        planned("", a_node(), uri=uri, name="x")


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "a b", "x" * 300])
def test_a_name_that_could_be_a_path_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="not a valid backend name"):
        planned("", a_node(), uri="registry.example/me/my-backend:v1", name=name)


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("registry.example/me/x:v1", "oci://registry.example/me/x:v1"),
        ("quay.io/me/x:v1", "quay.io/me/x:v1"),
        ("docker.io/me/x:latest", "docker.io/me/x:latest"),
    ],
)
def test_localais_workers_are_told_that_a_reference_is_an_image(uri: str, told: str) -> None:
    found = steps(planned("", a_node("ours"), a_node("theirs", foreign=True), uri=uri, name="x"))
    assert (found["ours"].source.uri, found["theirs"].source.uri) == (uri, told)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("oci://registry.example/me/x:v1", "registry.example/me/x:v1"),
        ("Registry.Example/me/x:v1", "registry.example/me/x:v1"),
        (" registry.example:5000/me/x", "registry.example:5000/me/x:latest"),
        ("me/x", "docker.io/me/x:latest"),
        ("https://example.org/x.tar.gz", "https://example.org/x.tar.gz"),
    ],
)
def test_a_reference_is_the_same_source_however_it_is_written(written: str, canonical: str) -> None:
    source = external(Source("", uri=written), local_sources=False).source
    assert source == external(Source("", uri=canonical), local_sources=False).source
    assert source.uri == canonical


def test_localais_workers_are_told_to_replace_what_came_from_elsewhere_and_only_that() -> None:
    def replaces(has: InstalledArtifact) -> tuple[bool, tuple[str, ...]]:
        node = a_node("theirs", has, foreign=True)
        plan = planned("", node, uri="registry.example/me/x:v2", name="x")
        return steps(plan)["theirs"].goal.replaces, plan.warnings

    before = artifact("x", uri="oci://registry.example/me/x:v1")
    same = artifact("x", uri="oci://registry.example/me/x:v2")
    assert replaces(before) == (True, ())
    assert replaces(artifact("other")) == (False, ())
    told, [warning] = replaces(same)
    assert not told
    assert "remuda backends upgrade --nodes=theirs x" in warning


def test_archives_are_skipped_on_localais_workers() -> None:
    uri = "https://example.org/x.tar.gz"
    found = steps(planned("", a_node("ours"), a_node("theirs", foreign=True), uri=uri, name="x"))
    assert (found["ours"].state, found["theirs"].state) == (State.PENDING, State.SKIPPED)


def test_what_did_not_start_in_the_last_install_is_started_again() -> None:
    plan = planned("llama-cpp", a_node("bad"), a_node("good"))
    ended = [
        replace(step, state=State.FAILED if name == "bad" else State.SUCCEEDED, problem=problem)
        for (name, step), problem in zip(steps(plan).items(), (NOT_STARTED, None), strict=True)
    ]
    again = steps(starting_again(plan, ended))
    assert (again["bad"].problem, again["good"].problem) == (NOT_STARTED, None)
    there = {name: Observation(boot=BootId("b"), installed=True) for name in again}
    sent = {name: advance(again[name], there[name], Wish.RUN, at())[1] for name in again}
    assert (sent["bad"] is not None, sent["good"]) == (True, None)


# Upgrade.


def test_a085_an_upgrade_is_for_the_nodes_that_have_it() -> None:
    nodes = [
        a_node("has", artifact("cpu-llama-cpp", alias="llama-cpp")),
        a_node("lists", artifact("cuda12-llama-cpp"), foreign=True),
        a_node("lacks", artifact("other")),
        a_node("unknown", told=False),
    ]
    assert steps(planned("llama-cpp", *nodes, kind=Kind.UPGRADE)).keys() == {"has", "lists"}


def test_a_node_upgrades_the_build_that_it_has() -> None:
    node = a_node("gpu", artifact("cpu-llama-cpp", alias="llama-cpp"), capability="nvidia")
    step = steps(planned("llama-cpp", node, kind=Kind.UPGRADE))["gpu"]
    assert (step.source.backend, step.goal.names[0]) == ("cpu-llama-cpp", "cpu-llama-cpp")


def test_a086_an_upgrade_of_what_no_node_has_is_refused() -> None:
    with pytest.raises(NotFound, match="no node has llama-cpp installed"):
        planned("llama-cpp", a_node(), kind=Kind.UPGRADE)


def test_what_ships_with_remuda_is_not_upgraded_apart_from_its_worker() -> None:
    with pytest.raises(Conflict, match="is upgraded with its worker"):
        planned("echo", a_node("n", artifact("echo")), kind=Kind.UPGRADE)


@pytest.mark.parametrize("foreign", [False, True])
def test_what_was_installed_from_a_reference_is_upgraded_from_it(foreign: bool) -> None:
    uri = "registry.example/me/homemade:latest"
    node = a_node("n", artifact("homemade", alias="pet", uri=uri), foreign=foreign)
    plan = planned("homemade", node, kind=Kind.UPGRADE, rolling=True)
    step = steps(plan)["n"]
    told = f"oci://{uri}" if foreign else uri
    assert (step.source.backend, step.source.uri, step.source.name) == ("homemade", told, "homemade")
    assert (step.goal.names, step.proves, step.rolls_back) == (("homemade", "pet"), True, not foreign)
    assert plan.builds == {Build(uri)}


def test_a_gallery_that_has_the_name_does_not_take_over_what_came_from_a_reference() -> None:
    has = artifact("lone", uri="registry.example/me/lone:v1")
    assert steps(planned("lone", a_node("n", has), kind=Kind.UPGRADE))["n"].source.uri == has.uri
    for ours in (
        artifact("lone", uri="registry.example/backends:older"),
        artifact("lone", uri="registry.example/me/lone:v1", gallery_url="https://example.org/index.yaml"),
    ):
        assert steps(planned("lone", a_node("n", ours), kind=Kind.UPGRADE))["n"].source.uri == ""


def test_what_no_gallery_has_cannot_be_upgraded() -> None:
    with pytest.raises(Conflict, match="no gallery has homemade"):
        planned("homemade", a_node("n", artifact("homemade")), kind=Kind.UPGRADE)


def test_a_roll_out_says_before_it_starts_who_cannot_go_back() -> None:
    has = artifact("cpu-llama-cpp")
    plan = planned(
        "llama-cpp", a_node("ours", has), a_node("theirs", has, foreign=True), kind=Kind.UPGRADE, rolling=True
    )
    found = steps(plan)
    assert (found["ours"].proves, found["ours"].rolls_back) == (True, True)
    assert (found["theirs"].proves, found["theirs"].rolls_back) == (True, False)
    assert any("theirs cannot roll back" in warning for warning in plan.warnings)


def test_a_plain_upgrade_is_tried_wherever_the_node_can_roll_back() -> None:
    has = artifact("cpu-llama-cpp")
    found = steps(
        planned("llama-cpp", a_node("ours", has), a_node("theirs", has, foreign=True), kind=Kind.UPGRADE)
    )
    assert (found["ours"].proves, found["ours"].rolls_back) == (True, True)
    assert (found["theirs"].proves, found["theirs"].rolls_back) == (False, False)


def test_a_roll_out_says_before_it_starts_that_no_node_can_prove_the_new_version() -> None:
    idle = artifact("cpu-llama-cpp").model_copy(update={"unprovable": True})
    alone = planned("llama-cpp", a_node("one", idle), kind=Kind.UPGRADE, rolling=True)
    assert any("no model has run with llama-cpp" in warning for warning in alone.warnings)
    able = a_node("two", artifact("cpu-llama-cpp"))
    assert not planned("llama-cpp", a_node("one", idle), able, kind=Kind.UPGRADE, rolling=True).warnings
    assert not planned("llama-cpp", a_node("one", idle), kind=Kind.UPGRADE).warnings


# Remove.


def test_a093_a_removal_is_for_every_node_those_that_are_away_included() -> None:
    nodes = [
        a_node("has", artifact("cpu-llama-cpp", alias="llama-cpp")),
        a_node("gone", artifact("cuda12-llama-cpp"), foreign=True, silent_s=300),
        a_node("drained", drained=True),
        a_node("pending", approved=False),
    ]
    assert steps(planned("llama-cpp", *nodes, kind=Kind.REMOVE)).keys() == {"has", "gone", "drained"}


def test_a_removal_names_what_the_node_has() -> None:
    node = a_node("n", artifact("cuda12-llama-cpp"), foreign=True)
    step = steps(planned("llama-cpp", node, kind=Kind.REMOVE))["n"]
    assert step.source.backend == "cuda12-llama-cpp"
    assert step.goal.names == ("cuda12-llama-cpp", "llama-cpp")


def test_a_removal_of_a_meta_backend_is_for_all_its_builds() -> None:
    both = artifact("cpu-llama-cpp", alias="llama-cpp"), artifact("cuda12-llama-cpp", alias="llama-cpp")
    step = steps(planned("llama-cpp", a_node("n", *both, artifact("lone")), kind=Kind.REMOVE))["n"]
    assert step.source.backend == "cpu-llama-cpp"
    assert step.goal.names == ("cpu-llama-cpp", "cuda12-llama-cpp", "llama-cpp")


def test_a_removal_of_one_build_leaves_the_other_alone() -> None:
    both = artifact("cpu-llama-cpp", alias="llama-cpp"), artifact("cuda12-llama-cpp", alias="llama-cpp")
    step = steps(planned("cuda12-llama-cpp", a_node("n", *both), kind=Kind.REMOVE))["n"]
    assert step.source.backend == "cuda12-llama-cpp"
    assert step.goal.names == ("cuda12-llama-cpp",), "under their common alias there is the other one"


def test_a_removal_by_the_alias_of_what_came_from_elsewhere_finds_it() -> None:
    step = steps(planned("pet", a_node("n", artifact("homemade", alias="pet")), kind=Kind.REMOVE))["n"]
    assert (step.source.backend, step.goal.names) == ("homemade", ("homemade", "pet"))


def test_what_no_gallery_knows_can_be_removed_where_a_node_has_it() -> None:
    found = steps(planned("homemade", a_node("has", artifact("homemade")), a_node("lacks"), kind=Kind.REMOVE))
    assert found.keys() == {"has", "lacks"}


@pytest.mark.parametrize(
    ("pin", "warning"),
    [
        (Pin(trouble="r.example/x:v9 does not exist in the registry", refused=True), "exist in the registry"),
        (Pin(trouble="connection refused"), "(connection refused): nodes that have it keep what they have"),
    ],
)
def test_image_that_is_not_there_is_not_said_to_be_kept(pin: Pin, warning: str) -> None:
    source = Source("mine", uri="r.example/x:v9")
    wanted = WantedOperation(Kind.INSTALL, source, Selection(), RollOut(64))
    drafted = proposal(wanted, PlanningContext((a_node("lacks"),), READINGS), OpId("op"))
    (told,) = pinned(drafted, dict.fromkeys(drafted.builds, pin)).warnings
    assert told.endswith(warning)


@pytest.mark.parametrize("trouble", ["", "no answer within 5 s"])
def test_a_removal_of_what_no_node_has_is_refused_though_galleries_cannot_be_read(trouble: str) -> None:
    nodes = a_node("a", artifact("cpu-llama-cpp", alias="llama-cpp")), a_node("b", artifact("homemade"))
    readings = tuple(replace(one, trouble=trouble) for one in READINGS)
    for name, hint in (
        ("homemad", "did you mean homemade?"),
        ("zzz", "`remuda backends` shows what is installed where"),
    ):
        wanted = WantedOperation(Kind.REMOVE, Source(name), Selection(), RollOut(64))
        with pytest.raises(NotFound) as refused:
            proposal(wanted, PlanningContext(nodes, readings), OpId("op"))
        assert refused.value.message == f"no backend named {name} is installed on any node"
        assert refused.value.hint == hint
