"""A server that speaks HTTP, described by a file and nothing else, serves a model of the fleet."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda.host.folder import DataFolder
from tests.integration.running import llama_server
from tests.integration.serving.asking import chat
from tests.integration.serving.site import add_model, of_model
from tests.support.models import tiny_model
from tests.support.processes import Frontend, ranch


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Frontend]:
    command = [sys.executable, "-m", llama_server.__name__, "--port", "{port}", "--model", "{model_path}"]
    manifest = {
        "protocol": "http",
        "command": [*command, ["--context", "{context_size}"]],
        "env": {"PYTHONPATH": str(Path(__file__).parents[3])},
        "start_limit": "60s",
    }
    file = tmp_path / "llama-server.yaml"
    file.write_text(json.dumps(manifest))
    with ranch(tmp_path / "ranch") as place:
        frontend = place.up()
        models = DataFolder(frontend.data_dir).models
        models.mkdir(exist_ok=True)
        shutil.copy(tiny_model(), models / "tiny.gguf")
        # Beside the worker, and last: the fleet knows of it at once.
        done = place.remuda("backends", "register", str(file))
        assert done.returncode == 0, done.stderr
        yield frontend


def test_a_model_is_loaded_by_its_server_and_answers_through_the_frontend(up: Frontend) -> None:
    add_model(up, "tiny", "llama-server", "tiny.gguf", context_size=128)

    answer = chat(up, "tiny", "the house", max_tokens=4)

    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert [one["protocol"] for one in of_model(up, "tiny")] == ["http"]
    words = up.child(llama_server.__name__).cmdline()
    assert words[words.index("--context") + 1] == "128"
