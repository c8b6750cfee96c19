"""What could be upgraded, told from what nodes have and what registries say."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from remuda.core.errors import Problem
from remuda.fleet.verdicts import ObservedNode
from remuda.ops.model import Kind, Stage, State, Step
from remuda.ops.ports import Build, Pin
from remuda.ops.selection import Holding, nodes_to_ask
from remuda.ops.steps import LOST, NOT_PROVEN, PROOF_FAILED
from remuda.ops.targets import Draft, OperationPlan, pinned
from remuda.ops.upgrades import (
    NOT_ASKED,
    NOT_ASKED_SINCE,
    BadVersion,
    ImageStatus,
    KnownBadVersion,
    Unchecked,
    Upgrade,
    bad_versions,
    candidates,
    offered,
    unchecked,
    unread,
    upgrades,
    without_bad,
)
from remuda.wire.nodes import InstalledArtifact
from tests.unit.ops.build import NOW, PINNED, a_step
from tests.unit.ops.fleet import MINE, NEW, OLD, READINGS, a_node, artifact

LONE = "registry.example/backends:lone"


def found(*nodes: ObservedNode, digests: dict[str, str] | None = None) -> dict[str, Upgrade]:
    given = {LONE: NEW} if digests is None else digests
    return upgrades(nodes, READINGS, {uri: ImageStatus(digest) for uri, digest in given.items()})


def has(name: str, *artifacts: InstalledArtifact, **facts: bool | float) -> ObservedNode:
    return a_node(name, *artifacts, **facts)  # type: ignore[arg-type]  # Facts are passed on as they are.


def test_a097_the_check_looks_at_what_nodes_have() -> None:
    assert found() == {}
    upgrade = found(has("a", artifact("lone", OLD)))["lone"]
    assert (upgrade.installed_digest, upgrade.available_digest) == (OLD, NEW)


@pytest.mark.parametrize("foreign", [False, True])
def test_a098_a_digest_that_was_never_recorded_is_flagged_until_a_real_reinstall(foreign: bool) -> None:
    assert "lone" in found(has("a", artifact("lone", ""), foreign=foreign))
    assert found(has("a", artifact("lone", NEW), foreign=foreign)) == {}


def test_what_was_heard_before_an_install_is_not_offered_in_its_place() -> None:
    """The tag may have moved on in between: what is remembered is then the older version."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    heard = {LONE: ImageStatus(OLD, at=noon)}

    def installed(at: str) -> list[ObservedNode]:
        return [has("a", artifact("lone", NEW).model_copy(update={"installed_at": at}))]

    later = installed("2026-01-01T12:00:01Z")
    assert upgrades(later, READINGS, heard) == {}
    assert [one.reason for one in unchecked(later, READINGS, heard)] == [NOT_ASKED_SINCE]
    earlier = installed("2026-01-01T11:59:59Z")
    assert upgrades(earlier, READINGS, heard)["lone"].available_digest == OLD
    assert unchecked(earlier, READINGS, heard) == []
    assert unchecked(later, READINGS, {LONE: ImageStatus(NEW, at=noon)}) == []


def test_a099_when_every_node_has_been_upgraded_nothing_is_left() -> None:
    before = [has("a", artifact("lone", OLD)), has("b", artifact("lone", NEW))]
    after = [has("a", artifact("lone", NEW)), has("b", artifact("lone", NEW))]
    assert found(*before).keys() == {"lone"}
    assert found(*after) == {}


def test_nodes_that_differ_from_most_are_named() -> None:
    nodes = [has(name, artifact("lone", digest)) for name, digest in (("a", NEW), ("b", OLD), ("c", NEW))]
    upgrade = found(*nodes)["lone"]
    assert (upgrade.installed_digest, [one.standing.node.name for one in upgrade.drift]) == (NEW, ["b"])


def test_versions_decide_where_the_gallery_has_them() -> None:
    assert found(has("a", artifact("versioned", OLD, "2.0"))) == {}
    upgrade = found(has("a", artifact("versioned", OLD, "1.0")))["versioned"]
    assert (upgrade.installed_version, upgrade.available_version) == ("1.0", "2.0")


def test_a_version_that_was_never_recorded_is_an_old_one() -> None:
    assert found(has("a", artifact("versioned", OLD, "")))["versioned"].available_version == "2.0"


def test_nodes_with_the_same_version_and_other_bytes_differ() -> None:
    nodes = [has("a", artifact("versioned", OLD, "2.0")), has("b", artifact("versioned", NEW, "2.0"))]
    assert len(found(*nodes)["versioned"].drift) == 1


def test_without_word_from_the_registry_nothing_is_claimed() -> None:
    assert found(has("a", artifact("lone", OLD)), has("b", artifact("lone", OLD)), digests={}) == {}


def test_nodes_that_differ_are_named_also_without_word_from_the_registry() -> None:
    nodes = has("a", artifact("lone", OLD)), has("b", artifact("lone", NEW)), has("c", artifact("lone", OLD))
    upgrade = found(*nodes, digests={})["lone"]
    assert [one.standing.node.name for one in upgrade.drift] == ["b"]
    assert upgrade.available_digest == ""


def test_what_no_gallery_has_and_what_ships_with_remuda_are_left_out() -> None:
    assert found(has("a", artifact("homemade"), artifact("echo", version="0.1"))) == {}


def test_a_stable_build_is_left_out_where_its_development_form_is_installed() -> None:
    assert found(has("a", artifact("lone", OLD), artifact("lone-development", OLD))) == {}


def test_nodes_that_are_offline_draining_or_not_let_in_do_not_count() -> None:
    old = artifact("lone", OLD)
    nodes = [has("a", old, silent_s=300), has("b", old, drained=True), has("c", old, approved=False)]
    assert found(*nodes) == {}


def test_nodes_that_are_silent_for_a_while_count() -> None:
    assert "lone" in found(has("a", artifact("lone", OLD), silent_s=40))


def test_a080_nodes_that_tell_only_when_asked_are_asked_unless_they_are_not_in_or_away() -> None:
    nodes = [
        has("ours"),
        has("theirs", foreign=True),
        has("silent", foreign=True, silent_s=40),
        has("offline", foreign=True, silent_s=300),
        has("draining", foreign=True, drained=True),
        has("pending", foreign=True, approved=False),
    ]
    assert [node for node, _ in nodes_to_ask(nodes)] == ["id-theirs", "id-silent"]


def test_only_images_that_digests_tell_apart_are_asked_about() -> None:
    node = has("a", artifact("lone"), artifact("versioned"), artifact("echo"), artifact("homemade"))
    assert candidates([node], READINGS) == {"lone": {LONE}}


# From references.

OWN = "registry.example/me/mine:latest"


def mine(name: str, digest: str, uri: str = OWN, **facts: bool) -> ObservedNode:
    return has(name, artifact("mine", digest, uri=uri), **facts)


def test_a_tag_that_moved_is_something_newer() -> None:
    assert candidates([mine("a", OLD)], READINGS) == {"mine": {OWN}}
    upgrade = found(mine("a", OLD), digests={OWN: NEW})["mine"]
    assert (upgrade.installed_digest, upgrade.available_digest) == (OLD, NEW)
    assert found(mine("a", NEW), digests={OWN: NEW}) == {}


def test_nodes_with_other_versions_of_a_reference_differ() -> None:
    other = "registry.example/me/mine:v2"
    nodes = [mine("a", OLD), mine("b", NEW, other), mine("c", OLD)]
    upgrade = found(*nodes, digests={OWN: OLD, other: NEW})["mine"]
    assert [one.standing.node.name for one in upgrade.drift] == ["b"]


def test_a_reference_by_digest_never_changes() -> None:
    assert candidates([mine("a", OLD, f"registry.example/me/mine@{OLD}")], READINGS) == {}


def test_what_localais_workers_cannot_tell_is_not_held_against_them() -> None:
    assert found(mine("a", NEW), mine("b", "", f"oci://{OWN}", foreign=True), digests={OWN: NEW}) == {}


# Whom nobody could ask.


def test_a_registry_that_could_not_be_asked_is_named_with_the_backends_it_has() -> None:
    nodes = [mine("a", OLD), has("b", artifact("lone", OLD))]
    heard = {OWN: ImageStatus(OLD), LONE: ImageStatus(OLD, "cannot be reached")}
    told = Unchecked("registry registry.example", "cannot be reached", ("lone",))
    assert unchecked(nodes, READINGS, heard) == [told]
    assert [one.reason for one in unchecked(nodes, READINGS, {})] == [NOT_ASKED]
    assert unchecked(nodes, READINGS, {OWN: ImageStatus(OLD), LONE: ImageStatus(OLD)}) == []


def test_a_gallery_that_could_not_be_read_is_named_where_something_came_from_it() -> None:
    lost = [replace(READINGS[0], trouble="cannot be reached"), READINGS[1]]
    ours = artifact("versioned", OLD, "2.0", uri="registry.example/backends:versioned", gallery_url=MINE.url)
    told = Unchecked("gallery mine", "cannot be reached", ("versioned",), READINGS[0].confirmed_at)
    assert unchecked([has("a", ours)], lost, {}) == [told]
    registered, shipped = artifact("registered", ""), artifact("echo", "", uri="builtin:echo")
    assert unchecked([mine("a", OLD), has("b", registered, shipped)], lost, {OWN: ImageStatus(OLD)}) == []
    assert unread(lost, [told]) == []
    assert unread(lost, []) == [Unchecked("gallery mine", "cannot be reached", ())]


OTHER = "sha256:" + "b" * 64
CRASHED = Problem(PROOF_FAILED, "the new version does not start: exit code 1", retryable=True)
LATER = NOW + timedelta(hours=1)
BAD = BadVersion(
    ("cpu-llama-cpp", "llama-cpp"),
    PINNED,
    "",
    "attic",
    datetime(2026, 3, 1, 12, 0, tzinfo=UTC),
    "exit code 1",
)


def tried(
    stage: Stage = Stage.ROLL_BACK,
    state: State = State.FAILED,
    problem: Problem | None = CRASHED,
    digest: str = PINNED,
) -> Step:
    step = a_step(Kind.UPGRADE, digest=digest, stage=stage, state=state, problem=problem, proves=True)
    return (
        step
        if state is not State.SUCCEEDED
        else a_step(Kind.UPGRADE, digest=digest, stage=stage, state=state)
    )


def test_a_version_that_was_taken_back_is_bad_with_node_time_and_reason() -> None:
    found = bad_versions([(tried(), NOW)])
    assert str(found[PINNED]) == (
        "version sha256:aaaaaaaaaaaa of cpu-llama-cpp failed to start on name-of-node-1 at "
        "2026-03-01 12:00 UTC: exit code 1"
    )


@pytest.mark.parametrize(
    "step",
    [
        tried(state=State.PENDING),  # On its way back.
        tried(Stage.PROVE),  # Its worker cannot go back.
        tried(problem=LOST),  # The worker was lost over it again and again.
    ],
)
def test_whatever_stopped_a_roll_out_because_of_its_version_counts(step: Step) -> None:
    assert bad_versions([(step, NOW)]).keys() == {PINNED}


@pytest.mark.parametrize(
    "step",
    [
        tried(problem=Problem(NOT_PROVEN, "not proven: nothing to start it with")),
        tried(Stage.PROVE, problem=Problem("bus_unusable", "the bus is away")),
        tried(Stage.PROVE, state=State.RUNNING),
        tried(Stage.APPLY, state=State.PENDING),  # Somebody tries it again.
        tried(digest=""),
    ],
)
def test_nothing_else_speaks_against_a_version(step: Step) -> None:
    assert bad_versions([(step, NOW)]) == {}


def test_a_version_that_has_started_since_is_good() -> None:
    good = tried(Stage.PROVE, State.SUCCEEDED)
    assert bad_versions([(good, LATER), (tried(), NOW)]) == {}
    assert bad_versions([(tried(), LATER), (good, NOW)]).keys() == {PINNED}


# Plans.


def plan(*digests: str, kind: Kind = Kind.UPGRADE) -> OperationPlan:
    return OperationPlan(
        tuple(Draft(a_step(kind, f"node-{number}", digest=one)) for number, one in enumerate(digests))
    )


def test_an_upgrade_to_such_a_version_is_refused_with_what_helps() -> None:
    with pytest.raises(KnownBadVersion) as refused:
        without_bad(plan(PINNED, PINNED), Kind.UPGRADE, {PINNED: BAD})
    assert refused.value.message == str(BAD)
    assert refused.value.hint == "use --force to try again"


def test_nodes_that_get_another_build_are_upgraded() -> None:
    left_out, goes = without_bad(plan(PINNED, OTHER), Kind.UPGRADE, {PINNED: BAD}).drafts
    assert (left_out.step.state, goes.step.state) == (State.SKIPPED, State.PENDING)
    assert left_out.step.reason == f"{BAD}; use --force to try again"


def test_another_digest_is_another_version() -> None:
    planned = plan(OTHER, "")
    assert without_bad(planned, Kind.UPGRADE, {PINNED: BAD}) is planned


def test_who_installs_such_a_version_is_told() -> None:
    planned = without_bad(plan(PINNED, kind=Kind.INSTALL), Kind.INSTALL, {PINNED: BAD})
    assert planned.warnings == (str(BAD),)
    assert planned.drafts[0].step.state is State.PENDING


LATEST = "registry.example:5000/me/x:latest"


def unasked(
    uri: str = LATEST, names: tuple[str, ...] = BAD.names, kind: Kind = Kind.UPGRADE
) -> OperationPlan:
    """As planned while the registry is down."""
    step = a_step(kind)
    step = replace(step, goal=replace(step.goal, names=names, digest=""))
    build = Build(uri)
    return pinned(OperationPlan((Draft(step, build),)), {build: Pin(trouble="connection refused")})


def test_an_upgrade_that_might_bring_such_a_version_is_refused_while_nobody_can_be_asked() -> None:
    with pytest.raises(KnownBadVersion) as refused:
        without_bad(unasked(), Kind.UPGRADE, {PINNED: BAD})
    assert refused.value.message == (
        f"registry.example:5000 could not be asked what {LATEST} stands for now (connection refused), "
        f"and {BAD}"
    )
    assert refused.value.hint == "try again when it can be reached, or use --force"


def test_other_upgrades_go_on_while_nobody_can_be_asked() -> None:
    for planned in (unasked(names=("whisper",)), unasked(f"registry.example/me/x@{OTHER}")):
        assert without_bad(planned, Kind.UPGRADE, {PINNED: BAD}) is planned


def test_a_reference_by_digest_needs_no_registry_to_be_known_as_bad() -> None:
    with pytest.raises(KnownBadVersion, match="failed to start"):
        without_bad(unasked(f"registry.example/me/x@{PINNED}"), Kind.UPGRADE, {PINNED: BAD})


def test_who_installs_what_might_be_such_a_version_is_told() -> None:
    planned = without_bad(unasked(kind=Kind.INSTALL), Kind.INSTALL, {PINNED: BAD})
    assert "could not be asked" in planned.warnings[-1]
    assert planned.drafts[0].step.state is State.PENDING


# What is offered.


def test_such_a_version_is_not_offered_unless_nodes_differ() -> None:
    holding = Holding(a_node("barn").standing, artifact("llama-cpp", OTHER))
    plain = Upgrade("llama-cpp", available_digest=PINNED)
    differs = Upgrade("llama-cpp", available_digest=PINNED, drift=(holding,))
    other = Upgrade("llama-cpp", available_digest=OTHER)
    for upgrade, kept in ((plain, []), (differs, [Upgrade("llama-cpp", drift=(holding,))]), (other, [other])):
        found, withheld = offered({"llama-cpp": upgrade}, {PINNED: BAD})
        assert (list(found.values()), len(withheld)) == (kept, upgrade is not other)


def test_a_gallery_that_tells_a_version_only_is_compared_by_it() -> None:
    bad = {PINNED: BadVersion(("llama-cpp",), PINNED, "2.0", "attic", NOW, "exit code 1")}
    for version, count in (("2.0", 0), ("2.1", 1)):
        found, _ = offered({"llama-cpp": Upgrade("llama-cpp", "1.0", version)}, bad)
        assert len(found) == count


def test_goals_of_other_backends_are_not_compared_by_version() -> None:
    bad = {PINNED: BadVersion(("whisper",), PINNED, "2.0", "attic", NOW, "exit code 1")}
    assert offered({"llama-cpp": Upgrade("llama-cpp", "1.0", "2.0")}, bad)[1] == ()
