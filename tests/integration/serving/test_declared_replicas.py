"""Declared replicas with real processes: they come by themselves, come back after a kill, and models that may
not share a node take turns however workers die."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

import httpx
import pytest

from remuda.core.entropy import SeededEntropy
from tests.integration.serving.asking import add_echo, chat, replicas
from tests.integration.serving.site import Site, at_once, of_model, site, wait_for_replicas
from tests.support.processes import Frontend, Json
from tests.support.waiting import wait_until_blocking

T = TypeVar("T")
GROUP = {"concurrency_groups": ["room"]}
ROUNDS = 6
AT_ONCE = 12


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site of its own: workers die here again and again."""
    with site(tmp_path_factory.mktemp("apart")) as started:
        yield started


def declare(frontend: Frontend, model: str, **terms: object) -> None:
    answer = frontend.ask("POST", "/api/nodes/scheduling", {"model_name": model, **terms})
    assert answer.status_code == 200, answer.text


def loaded_on(frontend: Frontend, model: str) -> set[str]:
    return {one["node"] for one in of_model(frontend, model) if one["state"] == "loaded"}


@pytest.mark.long  # For a minute a node that says nothing may only be late.
@pytest.mark.timeout(300)
def test_minimum_comes_by_itself_and_again_after_its_worker_is_killed(pair: Site) -> None:
    add_echo(pair.a, "always", min_replicas=1)
    [first] = wait_for_replicas(pair.b, "always", 1)
    lost = first["node"]
    other = "left" if lost == "right" else "right"
    pair.workers[lost].kill()
    wait_until_blocking(lambda: other in loaded_on(pair.a, "always"), within=120, what="another replica")
    pair.revive(lost)
    pair.a.ask("DELETE", "/api/models/always").raise_for_status()


def test_minimum_comes_by_itself_and_again_after_an_unload(pair: Site) -> None:
    add_echo(pair.a, "kept", min_replicas=1)
    [first] = wait_for_replicas(pair.b, "kept", 1)
    pair.a.ask("POST", "/api/models/kept/unload").raise_for_status()
    wait_until_blocking(lambda: _another(pair.b, first), within=30, what="another replica")
    pair.a.ask("DELETE", "/api/models/kept").raise_for_status()


def _another(frontend: Frontend, first: Json) -> bool:
    """Which an operation of its own has loaded."""
    rows = of_model(frontend, "kept")
    return [(one["state"], one["op_id"] != first["op_id"]) for one in rows] == [("loaded", True)]


def test_one_on_every_node_and_fewer_again(pair: Site) -> None:
    add_echo(pair.a, "wide")
    declare(pair.a, "wide", spread_all=True)
    wait_until_blocking(lambda: loaded_on(pair.b, "wide") == {"left", "right"}, within=30)
    declare(pair.b, "wide", max_replicas=1)
    wait_until_blocking(lambda: len(loaded_on(pair.a, "wide")) == 1, within=60, what="one to go")
    pair.a.ask("DELETE", "/api/models/wide").raise_for_status()


def companions(rows: list[Json]) -> list[tuple[str, int]]:
    """Nodes with more than one model of the group loaded."""
    on = Counter(row["node"] for row in rows if row["model"].startswith("m") and row["state"] == "loaded")
    return [(node, count) for node, count in on.items() if count > 1]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_models_for_three_workers_with_kills(apart: Site) -> None:
    """One model of the ten is loaded on a node at a time. Random demand, and a worker killed now and then: no
    request fails but those in flight on what was killed, and whoever waits in vain is told what for."""
    apart.workers["third"] = apart.start_worker("third")
    apart.workers["third"].wait_for("ready")
    dice = SeededEntropy(4711)
    names = [f"m{number}" for number in range(10)]
    for name in names:
        add_echo(apart.a, name, **GROUP)
    declare(apart.a, "m0", min_replicas=1)
    outcomes = Counter[str]()
    with at_once(AT_ONCE) as callers:
        for number in range(ROUNDS):
            asked = [
                callers.submit(outcome, one_of(dice, apart.frontends), one_of(dice, names))
                for _ in range(AT_ONCE)
            ]
            if number % 3 == 1:
                side = one_of(dice, list(apart.workers))
                apart.workers[side].kill()
                outcomes.update(one.result() for one in asked)
                apart.revive(side)
            else:
                outcomes.update(one.result() for one in asked)
            assert companions(replicas(apart.a)) == []
    assert outcomes["answered"] >= ROUNDS * AT_ONCE * 0.8, outcomes
    assert set(outcomes) <= {"answered", "waited in vain", "killed"}, outcomes
    wait_until_blocking(lambda: loaded_on(apart.b, "m0"), within=60, what="the minimum")


def one_of(dice: SeededEntropy, things: Sequence[T]) -> T:
    return things[int(dice.fraction() * len(things))]


def outcome(frontend: Frontend, model: str) -> str:
    try:
        answer = chat(frontend, model)
    except httpx.HTTPError as trouble:
        return f"no answer: {type(trouble).__name__}"
    if answer.status_code == 200:
        return "answered"
    why = answer.json()["error"]["message"]
    if answer.status_code == 503 and why:
        return "waited in vain"
    return "killed" if answer.status_code in (500, 502) and why else f"{answer.status_code}: {why}"
