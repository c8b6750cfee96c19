"""Versions that failed to start when they were rolled out."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from remuda.core.errors import Problem
from remuda.ops.bad_versions import BadVersion, KnownBadVersion, bad_versions, offered, without_bad
from remuda.ops.installed_backends import Holding
from remuda.ops.model import Kind, Stage, State, Step
from remuda.ops.ports import Build, Pin
from remuda.ops.steps import LOST, NOT_PROVEN, PROOF_FAILED
from remuda.ops.targets import Draft, OperationPlan, pinned
from remuda.ops.upgrades import Upgrade
from tests.unit.ops.build import NOW, PINNED, a_step
from tests.unit.ops.fleet import a_node, artifact

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
