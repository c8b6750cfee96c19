"""A LocalAI worker, which fetches nothing by itself, is sent the files of a model before it loads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.serving.asking import chat
from tests.integration.serving.serving_worker import BACKEND
from tests.integration.serving.site import add_model, answered
from tests.peers.localai_files import LocalAiFiles
from tests.peers.shell_backend.install import install_shell_backend
from tests.support.processes import START_S, TOKEN, Frontend, Json, Process, Ranch, ranch
from tests.support.waiting import wait_until_blocking

CONTENT = bytes(range(256)) * 20_000


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Ranch]:
    with ranch(tmp_path / "ranch") as started:
        yield started


def start_peer(place: Ranch, frontend: Frontend, files: LocalAiFiles) -> Process:
    install_shell_backend(place.folder / BACKEND)
    worker = place.program(
        "tests.integration.serving.serving_worker",
        *("--register-to", frontend.url, "--nats-url", f"nats://127.0.0.1:{frontend.bus_port}"),
        *("--name", "peer", "--run-file", str(place.folder / BACKEND / "run.sh")),
        *("--files-at", files.address),
        LOCALAI_REGISTRATION_TOKEN=TOKEN,
    )
    wait_until_blocking(lambda: worker.shown.startswith("ready"), within=START_S, what="the peer")
    return worker


def test_files_are_pushed_to_a_localai_worker_before_a_load(place: Ranch, tmp_path: Path) -> None:
    models = place.folder / "frontend" / "models"
    models.mkdir(parents=True)
    (models / "talk.bin").write_bytes(CONTENT)
    with LocalAiFiles(tmp_path / "peer", token=TOKEN, breaks_after=[1_000_000]).serving() as files:
        words = ("--auto-approve", "--expose-node-header", "--no-distributed-disk-headroom-check")
        frontend = place.frontend("frontend", *words)
        peer = start_peer(place, frontend, files)
        add_model(frontend, "talk", BACKEND, "talk.bin")

        answer = chat(frontend, "talk")
        assert answered(answer) == "one two three"
        assert answer.headers["X-Remuda-Node"] == "peer"
        folder = files.root / "models/talk"
        assert (folder / "talk.bin").read_bytes() == CONTENT
        told = f"loading 'talk.bin' from '{folder}/talk.bin' in '{folder}'"
        wait_until_blocking(lambda: told in peer.log, what="what the backend was told")

        steps = removed(frontend, "talk")
        assert (steps["peer"]["state"], steps["frontends"]["state"]) == ("skipped", "succeeded")
        assert "it may have files of talk, and they stay" in steps["peer"]["reason"]
        assert (models / "talk.bin").exists()

        add_model(frontend, "talk", BACKEND, "talk.bin")
        steps = removed(frontend, "talk", "?files=true")
        assert steps["peer"]["state"] == "succeeded"
        assert "in their cache, where only a person can remove it" in steps["peer"]["reason"]
        assert not (models / "talk.bin").exists()


def removed(frontend: Frontend, model: str, query: str = "") -> dict[str, Json]:
    """The steps of the removal, by node, once it is over."""
    answer = frontend.ask("DELETE", f"/api/models/{model}{query}").raise_for_status().json()
    op = f"/api/ops/{answer['operation']['id']}"
    wait_until_blocking(lambda: frontend.get(op)["status"] == "succeeded", within=30, what="the removal")
    return {step["node_name"]: step for step in frontend.get(op)["steps"]}
