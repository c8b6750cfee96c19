"""A backend's life on a real fleet: installed, upgraded with a canary, saved from a bad version, removed."""

from collections.abc import Iterator

import pytest

from tests.integration.chaos.corral import Corral, corral
from tests.integration.chaos.wares import broken, build, light
from tests.support.processes import Json
from tests.support.waiting import wait_until_blocking

BACKEND, BUILD = "alpha", build("alpha")
NODES = ("node-1", "node-2")
ROLLING = {"policy": "rolling"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """The tests are one story, told in this order."""
    with corral(tmp_path_factory.mktemp("whole-way")) as made:
        yield made


def installed_everywhere(fleet: Corral, digest: str) -> None:
    """On the disks at once; with every frontend as soon as the workers have said so."""
    wanted = {BUILD: digest} if digest else {}
    assert [fleet.on_disk(machine) for machine in fleet.workers] == [wanted, wanted]

    def agreed() -> bool:
        return all(
            fleet.shown(frontend, machine) == wanted
            for frontend in (fleet.frontend, fleet.other)
            for machine in fleet.workers
        )

    wait_until_blocking(agreed, within=15, what="frontends that show what is on the disks")


def states(steps: dict[str, Json]) -> dict[str, str]:
    return {name: step["state"] for name, step in steps.items()}


def test_installed_on_all_by_one_frontend_it_is_shown_the_same_by_both(fleet: Corral) -> None:
    digest = fleet.wares.offer(BACKEND, light(1))
    op = fleet.ask("install", BACKEND)
    steps = fleet.until_over(op)
    assert states(steps) == dict.fromkeys(NODES, "succeeded")
    assert {step["digest"] for step in steps.values()} == {digest}
    assert fleet.operation(op, fleet.other) == fleet.operation(op, fleet.frontend)
    installed_everywhere(fleet, digest)


def test_a_rolling_upgrade_brings_the_tags_new_digest_to_all(fleet: Corral) -> None:
    digest = fleet.wares.offer(BACKEND, light(2))
    steps = fleet.until_over(fleet.ask("upgrade", BACKEND, fleet.other, roll_out=ROLLING))
    assert states(steps) == dict.fromkeys(NODES, "succeeded")
    assert {step["stage"] for step in steps.values()} == {"prove"}
    installed_everywhere(fleet, digest)


def test_a_version_that_does_not_start_is_taken_back_and_goes_no_further(fleet: Corral) -> None:
    (before,) = {digest for machine in fleet.workers for digest in fleet.on_disk(machine).values()}
    fleet.wares.offer(BACKEND, broken(3))
    op = fleet.ask("upgrade", BACKEND, roll_out=ROLLING)
    steps = fleet.until_over(op, within=110)
    canary, spared = sorted(steps.values(), key=lambda step: step["state"], reverse=True)
    assert (canary["state"], canary["stage"]) == ("failed", "roll_back")
    assert "does not start" in canary["problem"]["message"]
    assert "the node was rolled back to " in canary["reason"]
    assert f"{before[:19]}…" in canary["reason"], "which version that is"
    assert (spared["state"], spared["attempt"]) == ("cancelled", 0)
    assert spared["reason"].startswith(f"the roll-out stopped at {canary['node_name']}: ")
    installed_everywhere(fleet, before)


def test_removed_it_is_gone_from_disks_and_screens_and_nothing_runs_on(fleet: Corral) -> None:
    steps = fleet.until_over(fleet.ask("remove", BACKEND))
    assert states(steps) == dict.fromkeys(NODES, "succeeded")
    installed_everywhere(fleet, "")
    assert fleet.backend_processes() == []
