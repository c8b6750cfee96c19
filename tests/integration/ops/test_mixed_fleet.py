"""Workers that know only LocalAI's contract beside our own, as processes: what is shown of each is true."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.chaos.services import HOST, nats_program, registry_program, web_server
from tests.integration.chaos.wares import Wares, build, light
from tests.support.images import Pusher
from tests.support.processes import TOKEN, Frontend, Json, Process, Ranch, ranch
from tests.support.waiting import wait_until_blocking

BACKEND, BUILD = "alpha", build("alpha")
OURS, OLD, SLOW = ("ours-1", "ours-2"), "old", "slow"
EVERYBODY = {*OURS, OLD, SLOW}
REPLY_S, INSTALL_S = 2, 6.0
pytestmark = pytest.mark.timeout(240)


@dataclass
class Mixed:
    place: Ranch
    wares: Wares
    bus_url: str
    gallery: str
    peers: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wares.offer(BACKEND, light(1))
        galleries = [{"name": "mixed", "url": self.gallery}, {"name": "remuda", "url": "builtin:gallery"}]
        self.frontend: Frontend = self.place.frontend(
            "frontend",
            "--auto-approve",
            REMUDA_NATS_URL=self.bus_url,
            REMUDA_BACKEND_GALLERIES=json.dumps(galleries),
            REMUDA_NATS_BACKEND_INSTALL_TIMEOUT=f"{REPLY_S}s",
        )
        for name in OURS:
            self.place.join(self.frontend.url, name)
        self.peers[OLD] = self._peer(OLD, "--lacks", "backend.upgrade", "--layers", "3")
        self.peers[SLOW] = self._peer(SLOW, "--layers", "3", "--install-s", str(INSTALL_S))
        for name in EVERYBODY:
            self.frontend.wait_for(name)

    def ask(self, kind: str, backend: str = BACKEND, **more: Any) -> Json:
        answer = self.frontend.ask("POST", "/api/ops", {"kind": kind, "backend": backend, **more})
        assert answer.status_code == 202, answer.text
        submitted: Json = answer.json()
        return submitted

    def steps(self, op: str) -> dict[str, Json]:
        shown = self.frontend.get(f"/api/ops/{op}")
        return {step["node_name"]: step for step in shown["steps"]}

    def until_over(self, op: str) -> dict[str, Json]:
        def over() -> dict[str, Json] | None:
            steps = self.steps(op)
            return (
                steps if all(step["state"] in ("succeeded", "skipped") for step in steps.values()) else None
            )

        return wait_until_blocking(over, within=60, what="an operation that is over")

    def holders(self) -> set[str]:
        """Every node that is shown with the build."""
        shown = {
            name: self.frontend.ask("GET", f"/api/nodes/{node['id']}/backends").json()
            for name, node in self.frontend.nodes().items()
        }
        return {name for name, listed in shown.items() if BUILD in [one["name"] for one in listed or ()]}

    def until_held_by(self, nodes: set[str]) -> None:
        wait_until_blocking(lambda: self.holders() == nodes, within=20, what=f"{BUILD} on {sorted(nodes)}")

    def heard(self, name: str, verb: str) -> list[Json]:
        """The bodies of such commands that the peer has received, oldest first."""
        lines = [json.loads(line) for line in self.peers[name].shown.splitlines() if line.startswith("{")]
        return [line["body"] for line in lines if line["verb"] == verb]

    def _peer(self, name: str, *more: str) -> Process:
        words = ("--register-to", self.frontend.url, "--nats-url", self.bus_url, "--name", name)
        environ = {"LOCALAI_REGISTRATION_TOKEN": TOKEN}
        module = "tests.peers.localai_worker"
        return self.place.program(module, *words, "--heartbeat-s", "0.5", *more, **environ)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    """The tests are one story, told in this order."""
    folder = tmp_path_factory.mktemp("mixed")
    web = folder / "web"
    web.mkdir()
    with (
        ranch(folder / "ranch") as place,
        nats_program(folder) as (_, bus_port),
        registry_program(folder) as (_, registry_port),
        web_server(web) as address,
    ):
        wares = Wares(Pusher(f"http://{HOST}:{registry_port}"), f"{HOST}:{registry_port}")
        (web / "index.yaml").write_text(wares.gallery((BACKEND,)))
        yield Mixed(place, wares, f"nats://{HOST}:{bus_port}", f"{address}/index.yaml")


def states(steps: dict[str, Json]) -> dict[str, str]:
    return {name: step["state"] for name, step in steps.items()}


def test_an_install_beyond_the_reply_is_shown_running_and_flips_when_it_is_done(fleet: Mixed) -> None:
    op = fleet.ask("install")["operation"]["id"]
    seen: list[Json] = []

    def done() -> bool:
        seen.append(fleet.steps(op)[SLOW])
        return bool(seen[-1]["state"] == "succeeded")

    wait_until_blocking(done, within=60)
    words = list(dict.fromkeys(step["wire_status"] for step in seen))
    assert words[-3:] == ["downloading", "running_on_worker", "success"]
    told = [step["progress"] for step in seen if "progress" in step]
    assert {one["phase"] for one in told} == {"downloading"}
    assert all(one["percentage"] <= two["percentage"] for one, two in pairwise(told))
    steps = fleet.until_over(op)
    assert states(steps) == dict.fromkeys(EVERYBODY, "succeeded")
    assert {(step["attempt"], step["failures"]) for step in [*steps.values(), *seen]} <= {(0, 0), (1, 0)}
    assert [len(fleet.heard(name, "backend.install")) for name in (OLD, SLOW)] == [1, 1]
    fleet.until_held_by(EVERYBODY)


def test_what_ships_with_remuda_is_not_for_a_foreign_node_which_is_told_before_anything_is_sent(
    fleet: Mixed,
) -> None:
    before = {name: len(fleet.heard(name, "backend.install")) for name in (OLD, SLOW)}
    steps = fleet.until_over(fleet.ask("install", "echo")["operation"]["id"])
    assert states(steps) == dict.fromkeys(OURS, "succeeded") | dict.fromkeys((OLD, SLOW), "skipped")
    for name in (OLD, SLOW):
        assert "ships with Remuda" in steps[name]["reason"]
        assert len(fleet.heard(name, "backend.install")) == before[name]


def test_an_upgrade_reaches_a_worker_without_the_word_by_one_forced_install(fleet: Mixed) -> None:
    digest = fleet.wares.offer(BACKEND, light(2))
    steps = fleet.until_over(fleet.ask("upgrade")["operation"]["id"])
    assert states(steps) == dict.fromkeys(EVERYBODY, "succeeded")
    forced = [body for body in fleet.heard(OLD, "backend.install") if body.get("force")]
    assert len(forced) == 1
    assert len(fleet.heard(SLOW, "backend.upgrade")) == 1
    (line,) = fleet.frontend.events("upgrade_fell_back_to_forced_install")
    assert (line["node"], line["backend"]) == (OLD, BUILD)
    for name in OURS:
        told = json.loads((_backends(fleet.place.folder / name) / BUILD / "metadata.json").read_text())
        assert told["digest"] == digest


def test_a_roll_out_says_before_it_begins_who_could_not_go_back(fleet: Mixed) -> None:
    fleet.wares.offer(BACKEND, light(3))
    submitted = fleet.ask("upgrade", roll_out={"policy": "rolling"})
    (warning,) = submitted["warnings"]
    assert all(name in warning for name in (OLD, SLOW))
    assert not any(name in warning for name in OURS)
    steps = fleet.until_over(submitted["operation"]["id"])
    assert states(steps) == dict.fromkeys(EVERYBODY, "succeeded")


def test_removed_it_is_gone_from_both_kinds(fleet: Mixed) -> None:
    steps = fleet.until_over(fleet.ask("remove")["operation"]["id"])
    assert states(steps) == dict.fromkeys(EVERYBODY, "succeeded")
    fleet.until_held_by(set())
    assert not any((_backends(fleet.place.folder / name) / BUILD).exists() for name in OURS)


def _backends(data_dir: Path) -> Path:
    return data_dir / "worker/backends"
