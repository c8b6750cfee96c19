"""A server that speaks HTTP, described by a file and nothing else, serves a model of the fleet."""

import base64
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
from tests.support.wav_files import wav_file

_PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(200)).decode()
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PNG}"}}
_WAV = base64.b64encode(wav_file(bytes(400))).decode()
SOUND = {"type": "input_audio", "input_audio": {"data": _WAV, "format": "wav"}}


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


def test_what_is_asked_with_a_chat_works_or_is_refused(up: Frontend) -> None:
    add_model(up, "tiny", "llama-server", "tiny.gguf", context_size=128)
    wanted = {"seed": 7, "logprobs": True, "top_logprobs": 2, "max_tokens": 4, "temperature": 1}
    several = chat(up, "tiny", "the house", n=2, **wanted)  # By a server with room for one answer.
    assert (several.status_code, "'n'" in several.json()["error"]["message"]) == (400, True)
    first, second = (
        chat(up, "tiny", "the house", reasoning_effort="low", parallel_tool_calls=False, **wanted).json()
        for _ in range(2)
    )
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
    tokens = first["choices"][0]["logprobs"]["content"]
    assert [len(token["top_logprobs"]) for token in tokens] == [2] * len(tokens)
    for part in (PICTURE, SOUND):
        body = {"model": "tiny", "messages": [{"role": "user", "content": [part]}]}
        refused = up.ask("POST", "/v1/chat/completions", body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_input")
    response = up.ask(
        "POST", "/v1/responses", {"model": "tiny", "input": "the house", "max_output_tokens": 4}
    )
    assert (response.status_code, response.json()["usage"]["output_tokens"]) == (200, 4)
    counted = up.ask("POST", "/v1/tokenize", {"model": "tiny", "content": "the house"}).json()
    assert counted["count"] == len(counted["tokens"]) > 0
