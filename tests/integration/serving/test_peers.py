"""A worker and a backend that know only LocalAI's contract serve chat through our frontend."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest

from tests.integration.serving.asking import chat, stream
from tests.integration.serving.serving_worker import BACKEND
from tests.integration.serving.site import add_model, answered, of_model
from tests.peers.shell_backend.install import install_shell_backend
from tests.support.processes import START_S, TOKEN, Frontend, Process, Ranch, ranch
from tests.support.waiting import wait_until_blocking

GB = 10**9


@dataclass
class Peers:
    """One frontend whose own node has no such backend, and peers that do."""

    place: Ranch
    up: Frontend

    def start(self, name: str, vram_bytes: int = 0) -> Process:
        run_file = self.place.folder / BACKEND / "run.sh"
        bus = f"nats://127.0.0.1:{self.up.bus_port}"
        worker = self.place.program(
            "tests.integration.serving.serving_worker",
            *("--register-to", self.up.url, "--nats-url", bus, "--name", name),
            *("--run-file", str(run_file), "--vram-bytes", str(vram_bytes)),
            LOCALAI_REGISTRATION_TOKEN=TOKEN,
        )
        wait_until_blocking(
            lambda: worker.shown.startswith("ready"), within=START_S, what=f"{name} to be ready"
        )
        return worker

    def kill_all(self) -> None:
        """Workers and the backends that outlive them."""
        for process in self.place.processes("program"):
            with suppress(psutil.Error):
                process.kill()


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    folder = tmp_path_factory.mktemp("peers")
    with ranch(folder / "ranch") as place:
        install_shell_backend(place.folder / BACKEND)
        (place.folder / "up/models").mkdir(parents=True)
        quick = ("--node-unhealthy-after", "2s", "--node-offline-after", "4s")
        words = ("--expose-node-header", "--distributed-shared-models", "--model-load-wait", "20s")
        yield Peers(place, place.up("up", *quick, *words))


def test_chat_is_answered_by_the_peer_whole_and_streamed(peers: Peers) -> None:
    worker = peers.start("peer")
    add_model(peers.up, "talk", BACKEND)
    answer = chat(peers.up, "talk", "one two three")

    assert answered(answer) == "one two three"
    assert answer.headers["X-Remuda-Node"] == "peer"
    streamed = stream(peers.up, "talk", "one two three")
    assert (streamed.text, streamed.done) == ("one two three", True)
    assert worker.shown.count("backend.install") == 1


def test_backend_of_a_peer_that_dies_is_started_again(peers: Peers) -> None:
    before = of_model(peers.up, "talk")[0]
    for process in peers.place.processes("program"):
        with suppress(psutil.Error):
            if "tests.peers.shell_backend.server" in process.cmdline():
                process.kill()
    answer = chat(peers.up, "talk")

    assert answered(answer) == "one two three"
    assert of_model(peers.up, "talk")[0]["address"] != before["address"]


def test_without_the_peer_each_node_has_a_reason_and_its_return_heals(peers: Peers) -> None:
    peers.kill_all()
    refused = chat(peers.up, "talk")

    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "no_capacity"
    message = refused.json()["error"]["message"]
    assert "peer: no heartbeat for" in message
    assert "up: " in message
    peers.start("peer")
    # What nobody can take is looked at once a second, however many ask.
    wait_until_blocking(lambda: chat(peers.up, "talk").status_code == 200, within=30, what="an answer")


@pytest.fixture(scope="module")
def gpu(peers: Peers) -> Process:
    """It may use 10 GB of VRAM, and large models are for it alone. Their files are holes."""
    worker = peers.start("gpu", vram_bytes=10 * GB)
    node = peers.up.nodes()["gpu"]["id"]
    peers.up.ask("PATCH", f"/api/nodes/{node}/labels", {"large": "yes"}).raise_for_status()
    for name, size in (("first", 6 * GB), ("second", 7 * GB), ("huge", 30 * GB)):
        with (peers.up.data_dir / "models" / f"{name}.bin").open("wb") as file:
            file.truncate(size)
        add_model(peers.up, name, BACKEND, f"{name}.bin", selector={"large": "yes"})
    return worker


def test_model_that_fits_nowhere_is_refused_with_a_reason_for_each_node(peers: Peers, gpu: Process) -> None:
    refused = chat(peers.up, "huge")

    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "no_capacity"
    message = refused.json()["error"]["message"]
    assert "gpu: needs 34.2 GiB of VRAM, 9.3 GiB available" in message
    assert "peer: no label large=yes" in message


def test_idle_model_leaves_for_one_that_is_asked_for(peers: Peers, gpu: Process) -> None:
    assert answered(chat(peers.up, "first")) == "one two three"
    assert answered(chat(peers.up, "second")) == "one two three"

    assert [one["node"] for one in of_model(peers.up, "second")] == ["gpu"]
    assert of_model(peers.up, "first") == []
    assert "model.stop first" in gpu.shown


def test_pinned_model_leaves_for_nobody(peers: Peers, gpu: Process) -> None:
    add_model(peers.up, "second", BACKEND, "second.bin", selector={"large": "yes"}, pinned=True)
    assert answered(chat(peers.up, "second")) == "one two three"
    refused = chat(peers.up, "first")

    assert refused.status_code == 503
    assert "remuda models scale second --no-pin" in refused.json()["error"]["message"]
    assert [one["state"] for one in of_model(peers.up, "second")] == ["loaded"]
