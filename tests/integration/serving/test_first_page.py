"""What the README's first page promises, on a machine of its own."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.integration.serving.asking import chat, said
from tests.support.models import smollm2
from tests.support.processes import Frontend, Ranch, ranch

MODEL = "smollm2-135m-instruct"
QUESTION = "Name the capital of France."


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranch]:
    with ranch(tmp_path_factory.mktemp("first")) as place:
        yield place


@pytest.fixture(scope="module")
def up(place: Ranch) -> Frontend:
    frontend = place.up()
    added = place.remuda("models", "add", str(smollm2()))
    assert added.returncode == 0, added.stderr
    assert f"remuda chat {MODEL}" in added.stdout
    return frontend


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


def test_chat_answers_at_the_terminal_and_ps_shows_where(place: Ranch, up: Frontend) -> None:
    chat(up, MODEL, QUESTION, max_tokens=1).raise_for_status()
    shown = place.remuda("models", "ps")
    assert MODEL in shown.stdout
    assert "loaded" in shown.stdout

    unloaded = place.remuda("models", "unload", MODEL)
    assert unloaded.returncode == 0, unloaded.stderr
    assert "nothing is loaded" in place.remuda("models", "ps").stdout


def test_the_file_is_linked_and_not_stored_twice(up: Frontend) -> None:
    there = up.data_dir / "models" / Path(smollm2()).name
    assert there.samefile(smollm2()) or there.stat().st_nlink == 1, "on one file system it is one file"
    assert there.stat().st_size == smollm2().stat().st_size
