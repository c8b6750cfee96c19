"""What people get wrong with models, and sources that serve something else, through a real frontend's API and
command line: a clear refusal, nothing lost, and nothing half visible."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from anyio.from_thread import start_blocking_portal

from remuda.cli.exits import Exit
from tests.integration.model_installs.test_installing import TINY, padded
from tests.support.hub import HubServer, hub_server
from tests.support.processes import Frontend, Json, Ranch, ranch
from tests.support.waiting import wait_until_blocking

KEPT = "kept/kept.gguf"
PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"
ANCHORS = "name: laughs\n" + "".join(
    f"a{number}: &a{number} [{', '.join([f'*a{number - 1}' if number else 'ha'] * 9)}]\n"
    for number in range(40)
)
CYCLE = "name: ring\nbackend: llama-cpp\nparameters: &p\n  model: a.gguf\n  again: *p\n"


@dataclass(frozen=True, slots=True)
class Stable:
    place: Ranch
    frontend: Frontend
    hub: HubServer

    def install(self, source: str, name: str = "", within: int = 60) -> Json:
        """The operation, once it has ended."""
        op = self.begin(source, name)
        return self.ended(op, within)

    def begin(self, source: str, name: str = "") -> str:
        body = {"model": source, **({"name": name} if name else {})}
        answer = self.frontend.ask("POST", "/api/models/install", body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["operation"]["id"])

    def ended(self, op: str, within: int = 60) -> Json:
        def over() -> Json | None:
            found: Json = self.frontend.get(f"/api/ops/{op}")
            return found if found["status"] not in ("queued", "running", "cancelling", "pausing") else None

        return wait_until_blocking(over, within=within, what=f"the end of {op}")

    def models(self) -> list[str]:
        return sorted(one["name"] for one in self.frontend.get("/api/models")["models"])

    def visible(self) -> list[str]:
        models = self.frontend.data_dir / "models"
        return sorted(str(one.relative_to(models)) for one in models.rglob("*") if one.is_file())


@pytest.fixture(scope="module")
def stable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stable]:
    """With one sound model, which is to stay as it is."""
    with (
        ranch(tmp_path_factory.mktemp("bad") / "ranch") as place,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(hub_server()) as hub,
    ):
        started = Stable(place, place.frontend("frontend"), hub)
        done = started.install(hub.add("/kept.gguf", TINY))
        assert done["status"] == "succeeded", done
        yield started


@pytest.fixture(autouse=True)
def _nothing_else_is_there(stable: Stable) -> Iterator[None]:
    yield
    assert (stable.models(), stable.visible()) == (["kept"], [KEPT])
    assert (stable.frontend.data_dir / "models" / KEPT).read_bytes() == TINY


@pytest.mark.parametrize(
    ("path", "content", "why"),
    [
        ("/cut.gguf", TINY[:-1000], "cut off"),
        ("/page.gguf", PAGE, "web page, not a GGUF"),
        ("/m-00001-of-00002.gguf", TINY, "m-00002-of-00002.gguf"),
    ],
    ids=["truncated", "a hub that serves HTML", "missing shard"],
)
def test_what_is_not_a_whole_model_is_refused_with_the_reason(
    stable: Stable, path: str, content: bytes, why: str
) -> None:
    url = stable.hub.add(path, content)
    said = stable.place.invoke("models", "install", url, "--url", stable.frontend.url, data="frontend")
    assert said.exit_code == Exit.NOT_EVERYWHERE, said.output
    assert why in " ".join(said.output.split())
    ended = stable.install(url)
    assert ended["status"] == "failed"
    assert why in json.dumps(ended)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CYCLE, "contains itself"),
        (ANCHORS, "line 2: it has more than 5000 parts"),
        ("name: long\nbackend: llama-cpp\n" + "".join(f"k{n}: &k{n} x\n" for n in range(700_000)), "large"),
        ("name: a/../b\nbackend: llama-cpp\nparameters: {model: a.gguf}\n", "a/../b"),
    ],
    ids=["a cycle", "anchors that multiply", "10 MB of anchors", "a name that leads elsewhere"],
)
def test_configuration_that_nobody_can_mean_is_refused_at_once(stable: Stable, text: str, why: str) -> None:
    answer = stable.frontend.ask("POST", "/api/models", {"config": text})
    assert answer.status_code in (400, 413, 422), answer.text[:500]
    file = stable.place.folder / "bad.yaml"
    file.write_text(text)
    said = stable.place.invoke("models", "add", str(file), "--url", stable.frontend.url, data="frontend")
    assert said.exit_code != 0
    assert why in answer.text


@pytest.mark.parametrize("name", ["a/../b", "../b", "/b"])
def test_model_is_not_installed_under_a_name_that_leads_elsewhere(stable: Stable, name: str) -> None:
    url = stable.hub.add("/fine.gguf", TINY)
    answer = stable.frontend.ask("POST", "/api/models/install", {"model": url, "name": name})
    assert answer.status_code == 400, answer.text
    assert "name" in answer.text
    words = ("models", "install", url, "--name", name, "--url", stable.frontend.url)
    said = stable.place.invoke(*words, data="frontend")
    assert said.exit_code != 0


def test_two_installs_at_once_are_one(stable: Stable) -> None:
    url = stable.hub.add("/both.gguf", padded(3_000_000))
    with ThreadPoolExecutor(4) as askers:
        ops = set(askers.map(stable.begin, [url] * 4))
    (op,) = ops
    assert stable.ended(op)["status"] == "succeeded"
    assert stable.visible() == ["both/both.gguf", KEPT]
    assert len(stable.hub.asked("GET", "both")) <= 2
    removed = stable.frontend.ask("DELETE", "/api/models/both").raise_for_status().json()
    assert stable.ended(removed["operation"]["id"])["status"] == "succeeded"


def test_install_that_is_asked_for_during_a_removal_follows_it(stable: Stable) -> None:
    url = stable.hub.add("/again.gguf", padded(1_000_000))
    assert stable.install(url)["status"] == "succeeded"
    removed = stable.frontend.ask("DELETE", "/api/models/again").raise_for_status().json()
    again = stable.begin(url)
    assert stable.ended(removed["operation"]["id"])["status"] in ("succeeded", "superseded", "cancelled")
    assert stable.ended(again)["status"] == "succeeded"
    assert stable.models() == ["again", "kept"]
    assert (stable.frontend.data_dir / "models/again/again.gguf").read_bytes() == padded(1_000_000)
    removed = stable.frontend.ask("DELETE", "/api/models/again").raise_for_status().json()
    assert stable.ended(removed["operation"]["id"])["status"] == "succeeded"
