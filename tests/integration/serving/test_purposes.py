"""Models are installed by their source alone, and can be asked for what their files say."""

import base64
import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.models import WIDTH, minilm, tiny_embedder, tiny_model, tiny_reranker
from tests.support.plain_http import PLAIN
from tests.support.processes import Frontend, ranch
from tests.support.waiting import wait_until_blocking
from tests.support.wav_files import wav_file

LOAD_S = 120


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    with ranch(tmp_path_factory.mktemp("ranch")) as place:
        yield place.up()


def install(up: Frontend, file: Path, name: str) -> list[str]:
    """What it is used for, as screens show it."""
    up.ask("POST", "/api/models/install", {"model": f"file://{file}", "name": name}).raise_for_status()

    def usecases() -> list[str] | None:
        found = next((one for one in up.get("/api/models")["models"] if one["name"] == name), None)
        return None if found is None else found["usecases"]

    return wait_until_blocking(usecases, within=LOAD_S, what=f"{name} to be installed")


def ask(up: Frontend, path: str, **body: object) -> httpx.Response:
    return httpx.post(f"{up.url}{path}", json=body, timeout=LOAD_S, trust_env=False, verify=PLAIN)


def vectors(up: Frontend, model: str, *texts: str) -> list[list[float]]:
    answer = ask(up, "/v1/embeddings", model=model, input=list(texts))
    assert answer.status_code == 200, answer.text
    return [one["embedding"] for one in answer.json()["data"]]


def test_an_embedding_model_answers_with_vectors(up: Frontend) -> None:
    assert install(up, tiny_embedder(), "vectors") == ["embeddings"]

    assert [len(one) for one in vectors(up, "vectors", "the house", "bread")] == [WIDTH, WIDTH]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/api/chat", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}),
    ],
)
def test_an_embedding_model_is_not_loaded_for_a_chat(
    up: Frontend, path: str, body: dict[str, object]
) -> None:
    if not any(one["name"] == "idle" for one in up.get("/api/models")["models"]):
        install(up, tiny_embedder(), "idle")

    refused = ask(up, path, model="idle", **body)

    assert refused.status_code == 400
    assert "idle is for embeddings, and writes no text (POST /v1/embeddings)" in refused.text
    assert not [one for one in up.get("/api/replicas")["replicas"] if one["model"] == "idle"]


def test_a_reranker_ranks(up: Frontend) -> None:
    assert install(up, tiny_reranker(), "ranks") == ["rerank"]

    answer = ask(up, "/v1/rerank", model="ranks", query="the house", documents=["a river", "bread"])

    assert answer.status_code == 200, answer.text
    assert {one["index"] for one in answer.json()["results"]} == {0, 1}
    again = ask(up, "/v2/rerank", model="ranks", query="the house", documents=["a river", "bread"], top_n=1)
    assert again.status_code == 200, again.text
    (best,) = again.json()["results"]
    assert best == {name: answer.json()["results"][0][name] for name in ("index", "relevance_score")}


HOUSE = [{"role": "user", "content": "the house"}]
PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(200)).decode()
PIXEL = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
HEARD = base64.b64encode(wav_file(bytes(400))).decode()
SOUND = {"type": "input_audio", "input_audio": {"data": HEARD, "format": "wav"}}


def test_a_chat_has_what_was_asked_for_with_it(up: Frontend) -> None:
    assert install(up, tiny_model(), "talks") == ["chat", "completion"]
    wanted = {"n": 2, "seed": 7, "logprobs": True, "top_logprobs": 2, "max_tokens": 4, "temperature": 1}
    first, second = (
        ask(
            up, "/v1/chat/completions", model="talks", messages=HOUSE, reasoning_effort="low", **wanted
        ).json()
        for _ in range(2)
    )
    assert [choice["message"] for choice in first["choices"]] == [
        choice["message"] for choice in second["choices"]
    ]
    for choice in first["choices"]:
        tokens = choice["logprobs"]["content"]
        assert 1 <= len(tokens) <= 4
        assert all(len(token["top_logprobs"]) == 2 for token in tokens)
    for part in (PIXEL, SOUND):
        shown = [{"role": "user", "content": [part]}]
        refused = ask(up, "/v1/chat/completions", model="talks", messages=shown)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_input"), (
            refused.text
        )


def test_tokens_are_those_of_the_model(up: Frontend) -> None:
    assert install(up, tiny_model(), "counts") == ["chat", "completion"]
    text = ask(up, "/v1/tokenize", model="counts", content="the house").json()
    chat = ask(up, "/v1/tokenize", model="counts", messages=HOUSE).json()
    assert text["count"] == len(text["tokens"]) > 0
    assert chat["count"] > text["count"]


@pytest.mark.long
def test_sentences_of_like_meaning_have_like_vectors(up: Frontend) -> None:
    assert install(up, minilm(), "minilm") == ["embeddings"]

    cat, kitten, tax = vectors(
        up, "minilm", "A cat sits on the mat.", "A kitten lies on a rug.", "Taxes are due in May."
    )

    assert _likeness(cat, kitten) > 2 * _likeness(cat, tax)
    assert _likeness(cat, kitten) > 0.4


def _likeness(one: list[float], other: list[float]) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.hypot(*one) / math.hypot(*other)
