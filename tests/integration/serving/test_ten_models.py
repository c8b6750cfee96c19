"""Ten models for three workers whose memory does not hold them all, one of them with a real engine: random
demand for some minutes, workers that are killed, and every wait explained as it was."""

import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx
import pytest

from remuda.core.entropy import SeededEntropy
from remuda.host.folder import DataFolder
from tests.integration.serving.asking import add_echo, chat
from tests.integration.serving.site import Site, add_model, at_once, site
from tests.support.models import tiny_model
from tests.support.processes import Frontend, Json
from tests.support.waiting import wait_until_blocking

LASTS_S = 150.0
AT_ONCE = 8
PATIENCE_S = 300.0  # Eight models take turns, each after a load; on a busy machine for minutes.
BUDGETS = {  # An echo process takes 25 MiB, and the real engine some 260 MiB.
    "left": ("--ram-budget", "60MB"),
    "right": ("--ram-budget", "60MB"),
    "third": ("--ram-budget", "300MB"),
}
ECHOES = [f"m{number}" for number in range(9)]
NODES = ("left", "right", "third")
_LOADED_ON = re.compile(r"^.* to be (?:loaded|installed) on (?P<node>\S+)$")


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("crowded"), workers=BUDGETS) as started:
        started.workers["third"] = started.start_worker("third")
        started.workers["third"].wait_for("ready")
        yield started


@dataclass(frozen=True, slots=True)
class Asked:
    model: str
    status: int  # 0: the connection was lost.
    id: str = ""
    said: str = ""


def ask(frontend: Frontend, model: str) -> Asked:
    try:
        answer = chat(frontend, model, patience_s=PATIENCE_S, max_tokens=3)
    except httpx.HTTPError:
        return Asked(model, 0)
    said = "" if answer.status_code == 200 else answer.json()["error"]["message"]
    return Asked(model, answer.status_code, answer.headers["x-request-id"], said)


def a_round(crowded: Site, dice: SeededEntropy, *, kills: bool) -> list[Asked]:
    names = [*ECHOES, "tiny"]
    with at_once(AT_ONCE) as callers:
        pending = [
            callers.submit(ask, crowded.frontends[dice.fraction() < 0.5], names[int(dice.fraction() * 10)])
            for _ in range(AT_ONCE)
        ]
        if kills:
            side = NODES[int(dice.fraction() * 3)]
            crowded.workers[side].kill()
        asked = [one.result() for one in pending]
        if kills:
            crowded.revive(side)
    return asked


def explained(crowded: Site, one: Asked) -> Json:
    answer = crowded.a.ask("GET", f"/api/requests/{one.id}/explanation")
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def check_explanation(crowded: Site, one: Asked, loaded: Mapping[str, set[str]]) -> Counter[str]:
    """Every wait is for its own model, and as long as it took in all; a load that was waited for took place,
    where it says; and whoever was refused is told the same twice."""
    told = explained(crowded, one)
    assert (told["model"], told["status"]) == (one.model, one.status)
    assert told.get("error_message", "") == one.said
    waits = told.get("waits", [])
    assert sum(wait["seconds"] for wait in waits) <= told["waited_seconds"] + 0.05
    kinds = Counter[str]()
    for wait in waits:
        its_own = one.model in wait["cause"] or wait["cause"].startswith("its backend to be installed")
        assert its_own, wait
        load = _LOADED_ON.match(wait["cause"])
        if load:
            assert load["node"] in loaded[one.model], (wait, loaded[one.model])
        kinds[wait["cause"].replace(one.model, "MODEL").split(" on ")[0].split(" (")[0]] += 1
    return kinds


def loads(crowded: Site) -> Mapping[str, set[str]]:
    """Where each model was to be loaded, by all operations there were."""
    rows = crowded.query(
        "SELECT o.source::jsonb->>'model', n.name FROM operations o JOIN steps s ON s.op_id = o.id "
        "JOIN nodes n ON n.id = s.node WHERE o.kind = 'load'"
    )
    found: dict[str, set[str]] = {}
    for model, node in rows:
        found.setdefault(str(model), set()).add(str(node))
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_models_in_memory_for_less_with_kills(crowded: Site) -> None:
    for name in ECHOES:
        add_echo(crowded.a, name)
    for frontend in crowded.frontends:
        models = DataFolder(frontend.data_dir).models
        models.mkdir(exist_ok=True)
        shutil.copy(tiny_model(), models / "tiny.gguf")
    add_model(crowded.a, "tiny", "llama-cpp", "tiny.gguf", context_size=128, threads=1)
    dice, asked = SeededEntropy(1511), list[Asked]()
    until, rounds = time.monotonic() + LASTS_S, 0
    while time.monotonic() < until:
        rounds += 1
        killed = rounds % 4 == 2
        answers = a_round(crowded, dice, kills=killed)
        # Only what was in flight on a killed process fails, and only with its connection or in so many words.
        allowed = {200, 503, 500, 502} if killed else {200, 503}
        assert {one.status for one in answers} <= allowed, answers
        asked += answers
    where = loads(crowded)
    kinds = Counter[str]()
    for one in asked:
        kinds += check_explanation(crowded, one, where)
    print(rounds, "rounds;", Counter(one.status for one in asked), dict(kinds))
    print(Counter(one.said.replace(one.model, "MODEL") for one in asked if one.status != 200).most_common(12))
    assert any("loaded" in kind for kind in kinds), kinds
    for name in (*ECHOES, "tiny"):
        wait_until_blocking(lambda name=name: ask(crowded.b, name).status == 200, within=120, what=name)  # type: ignore[misc]
