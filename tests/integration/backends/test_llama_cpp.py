"""What the llama-cpp backend answers, with a real engine and a model of random weights."""

import json
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import httpx
import pytest

from tests.integration.backends.llama_cpp_process import (
    TOKEN,
    HealthWatch,
    allowed_s,
    client_of,
    engine_of,
    holding,
    loaded,
    said,
    started,
    text_of,
)
from tests.integration.backends.programs import BackendProcess, running
from tests.peers.backend_client import BackendClient, CallFailed
from tests.support.models import WIDTH, tiny_reranker
from tests.support.plain_http import PLAIN

pytestmark = pytest.mark.anyio

QUESTION = [{"role": "user", "content": "the house"}]
STREAMS = 16


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackendProcess]:
    with started(tmp_path_factory.mktemp("llama-cpp")) as process:
        yield process


@pytest.fixture
async def client(process: BackendProcess) -> AsyncIterator[BackendClient]:
    async with client_of(process) as client:
        await loaded(client, Options=[f"parallel:{STREAMS}"], ContextSize=8192)
        yield client


# Who may ask


@pytest.mark.parametrize("token", ["", "another-token"])
async def test_without_the_token_nothing_is_answered(process: BackendProcess, token: str) -> None:
    async with client_of(process, token) as stranger:
        with pytest.raises(CallFailed) as failed:
            await stranger.health()
    assert failed.value.code == "UNAUTHENTICATED"


async def test_the_engine_answers_to_nobody_else(process: BackendProcess, client: BackendClient) -> None:
    listening = [
        each.laddr for each in engine_of(process).net_connections(kind="inet") if each.status == "LISTEN"
    ]
    (address,) = listening
    assert address.ip == "127.0.0.1"
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{address.port}", verify=PLAIN) as stranger:
        answer = await stranger.post("/completion", json={"prompt": "the house", "n_predict": 1})
    assert answer.status_code == 401


async def test_a_call_for_another_model_is_refused(client: BackendClient) -> None:
    with pytest.raises(CallFailed) as failed:
        await client.predict(Prompt="the house", Tokens=1, ModelIdentity="another")
    assert (failed.value.code, "model identity mismatch" in failed.value.details) == ("NOT_FOUND", True)


# Text


async def test_an_answer_comes_with_its_numbers(client: BackendClient) -> None:
    reply = await client.predict(Prompt="the house", Tokens=8, IgnoreEOS=True, ModelIdentity="tiny")
    prompt = await client.tokenize(Prompt="the house")
    assert (reply.tokens, reply.prompt_tokens) == (8, len(prompt) + 1)  # One more begins the text.
    assert reply.prompt_ms > 0
    assert reply.generation_ms > 0


async def test_a_stream_says_what_the_whole_answer_says(client: BackendClient) -> None:
    asked = {"Prompt": "the house", "Tokens": 40, "Temperature": 0.9, "Seed": 5, "IgnoreEOS": True}
    whole, parts = await client.predict(**asked), await said(client, **asked)
    assert text_of(parts) == whole.text
    assert len(parts) > 1  # How many depends on how fast they are read.
    counts = [part.tokens for part in parts]
    assert counts == sorted(counts)
    assert (counts[-1], parts[-1].prompt_tokens) == (40, whole.prompt_tokens)


async def test_a_seed_decides_the_answer(client: BackendClient) -> None:
    asked = {"Prompt": "a river", "Tokens": 20, "Temperature": 1.5, "IgnoreEOS": True}
    first, again, other = [(await client.predict(**asked, Seed=seed)).text for seed in (1, 1, 2)]
    assert first == again != other


async def test_a_chat_goes_through_the_model_s_own_template(client: BackendClient) -> None:
    asked = {"Tokens": 10, "IgnoreEOS": True, "Temperature": 0.7, "Seed": 3}
    chat = await said(client, UseTokenizerTemplate=True, Messages=QUESTION, **asked)
    rendered = (await client.model_metadata()).rendered_template.replace("Hello", "the house")
    plain = await client.predict(Prompt=rendered, **asked)
    assert "<|im_start|>user" in rendered
    assert (text_of(chat), chat[-1].prompt_tokens, chat[-1].tokens) == (plain.text, plain.prompt_tokens, 10)
    assert "".join(delta.content for reply in chat for delta in reply.deltas) == text_of(chat)


async def test_a_thought_is_no_part_of_the_answer(client: BackendClient) -> None:
    grammar = r'root ::= "<think>\nhm, well\n</think>\n\nyes"'
    replies = await said(client, UseTokenizerTemplate=True, Messages=QUESTION, Grammar=grammar, Tokens=100)
    deltas = [delta for reply in replies for delta in reply.deltas]
    assert text_of(replies) == "".join(delta.content for delta in deltas) == "yes"
    assert "".join(delta.reasoning for delta in deltas).strip() == "hm, well"


async def test_thinking_can_be_switched_off(client: BackendClient) -> None:
    asked = {"UseTokenizerTemplate": True, "Messages": QUESTION, "Tokens": 1, "IgnoreEOS": True}
    free = await client.predict(**asked)
    bound = await client.predict(**asked, Metadata={"enable_thinking": "false"})
    metadata = await client.model_metadata()
    assert metadata.supports_thinking
    assert metadata.media_marker
    assert bound.prompt_tokens > free.prompt_tokens  # The template says that thinking is over.


async def test_a_plain_prompt_gets_no_deltas(client: BackendClient) -> None:
    replies = await said(client, Prompt="the house", Tokens=4)
    assert not any(reply.deltas for reply in replies)


@pytest.mark.parametrize("chat", [False, True])
async def test_characters_of_several_bytes_arrive_whole(client: BackendClient, chat: bool) -> None:
    text = "grüß dich, 你好 🌍"
    asked = {"Messages": QUESTION, "UseTokenizerTemplate": True} if chat else {"Prompt": "the house"}
    replies = await said(client, Grammar=f'root ::= "{text}"', Tokens=100, **asked)
    assert text_of(replies) == text


async def test_a_grammar_is_followed_and_a_stop_word_ends_the_answer(client: BackendClient) -> None:
    asked = {"Prompt": "the house", "Grammar": 'root ::= "one, two, three"', "Tokens": 50}
    assert (await client.predict(**asked)).text == "one, two, three"
    assert (await client.predict(**asked, StopPrompts=[", th"])).text == "one, two"
    assert text_of(await said(client, **asked, StopPrompts=[", th"])) == "one, two"


@pytest.mark.parametrize("chat", [False, True])
async def test_logprobs_come_in_openai_s_shape(client: BackendClient, chat: bool) -> None:
    asked = {"Messages": QUESTION, "UseTokenizerTemplate": True} if chat else {"Prompt": "the house"}
    letters = {"Grammar": "root ::= [a-z]+", "Tokens": 3}  # The engine tells no chances of half a character.
    reply = await client.predict(**asked, **letters, Logprobs=2, TopLogprobs=2)
    assert isinstance(reply.logprobs, dict)
    tokens = reply.logprobs["content"]
    assert len(tokens) == 3
    for token in tokens:
        assert token["logprob"] <= 0
        assert {"token", "bytes", "top_logprobs"} <= set(token)
        assert len(token["top_logprobs"]) == 2


async def test_a_bias_makes_a_token_certain(client: BackendClient) -> None:
    (letter,) = await client.tokenize(Prompt="x")
    reply = await client.predict(
        Prompt="the house", Tokens=5, Temperature=1.0, LogitBias=json.dumps({letter: 100})
    )
    assert reply.text == "xxxxx"


async def test_without_a_bound_the_context_is_the_bound(tmp_path: Path) -> None:
    async with holding(tmp_path, ContextSize=512) as (_, client):
        reply = await client.predict(Prompt="the house", IgnoreEOS=True)
    assert 0 < reply.tokens <= 512


# Refusals, in the engine's words


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"Prompt": "x" * 9000}, "exceeds the available context size"),
        ({"Prompt": "a", "Grammar": "root ::= ((("}, "grammar"),
        ({"Messages": [], "UseTokenizerTemplate": True}, "both empty"),
        ({"Prompt": "a", "LogitBias": "[1"}, "LogitBias is not JSON"),
        ({"Messages": QUESTION, "UseTokenizerTemplate": True, "Tools": "{}"}, "Tools is JSON of the wrong"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_the_reason(
    client: BackendClient, asked: dict[str, object], told: str
) -> None:
    with pytest.raises(CallFailed) as whole:
        await client.predict(Tokens=4, **asked)
    with pytest.raises(CallFailed) as streamed:
        await said(client, Tokens=4, **asked)
    assert [whole.value.code, streamed.value.code] == ["INVALID_ARGUMENT"] * 2
    assert told in whole.value.details
    assert told in streamed.value.details


async def test_vectors_of_a_model_loaded_for_text_are_refused(client: BackendClient) -> None:
    with pytest.raises(CallFailed) as failed:
        await client.embedding(Embeddings="the house")
    assert (failed.value.code, "`embeddings: true`" in failed.value.details) == ("UNIMPLEMENTED", True)


async def test_scores_of_a_model_loaded_for_text_are_refused(client: BackendClient) -> None:
    with pytest.raises(CallFailed) as failed:
        await client.rerank(query="the house", documents=["a river"])
    assert (failed.value.code, "`reranking: true`" in failed.value.details) == ("UNIMPLEMENTED", True)


# Tokens and numbers


@pytest.mark.parametrize("text", ["the house and a river", "  two  spaces ", "grüß dich 你好 🌍", ""])
async def test_tokens_turn_back_into_their_text(client: BackendClient, text: str) -> None:
    assert await client.detokenize(await client.tokenize(Prompt=text)) == text


async def test_its_state_and_its_numbers_can_be_asked(client: BackendClient) -> None:
    before = await client.metrics()
    await client.predict(Prompt="the house", Tokens=5, IgnoreEOS=True)
    status, after = await client.status(), await client.metrics()
    assert status.state == "READY"
    assert dict(status.memory_breakdown)["engine"] > 1 << 20
    assert status.memory_bytes == sum(size for _, size in status.memory_breakdown)
    assert after.tokens_generated - before.tokens_generated == 5
    assert after.tokens_per_s > 0


# Many at once


async def test_sixteen_streams_interleave_while_health_is_answered(
    process: BackendProcess, client: BackendClient, tmp_path: Path
) -> None:
    order: list[int] = []

    async def ask(number: int) -> None:
        async for _ in client.predict_stream(Prompt="a river", Tokens=400, Seed=number, IgnoreEOS=True):
            order.append(number)

    with (
        running(tmp_path, LOCALAI_GRPC_AUTH_TOKEN=TOKEN) as idle,
        HealthWatch(idle) as control,
        HealthWatch(process) as health,
    ):
        async with anyio.create_task_group() as asking:
            for number in range(STREAMS):
                asking.start_soon(ask, number)
    all_begun = max(order.index(number) for number in range(STREAMS))
    first_done = min(len(order) - order[::-1].index(number) for number in range(STREAMS))
    assert all_begun < first_done, "some stream began after another had ended"
    assert health.asked > 10
    assert health.longest_s < allowed_s(control)


async def test_calls_beyond_the_slots_wait_for_their_turn(client: BackendClient) -> None:
    counts: list[int] = []

    async def ask() -> None:
        counts.append((await client.predict(Prompt="a river", Tokens=10, IgnoreEOS=True)).tokens)

    async with anyio.create_task_group() as asking:
        for _ in range(3 * STREAMS):
            asking.start_soon(ask)
    assert counts == [10] * 3 * STREAMS


# Vectors and ranks


async def test_a_text_has_one_vector_and_always_the_same(tmp_path: Path) -> None:
    async with holding(tmp_path, Embeddings=True, Options=["pooling:mean"]) as (_, client):
        first, again, other = [
            await client.embedding(Embeddings=text) for text in ("the house", "the house", "bread")
        ]
        tokens = await client.tokenize(Prompt="the house")
        by_tokens = await client.embedding(EmbeddingTokens=[1, *tokens])
    assert first == again
    assert first.values != other.values
    assert (first.vectors, first.dim, first.prompt_tokens, first.layout) == (
        1,
        WIDTH,
        len(tokens) + 1,
        "ONE_VECTOR",
    )
    assert math.isclose(sum(value * value for value in first.values), 1, rel_tol=1e-4)
    assert by_tokens.values == pytest.approx(first.values, abs=1e-4)


async def test_a_model_that_does_not_pool_gives_a_vector_for_each_token(tmp_path: Path) -> None:
    async with holding(tmp_path, Embeddings=True) as (_, client):
        found = await client.embedding(Embeddings="the house")
        count = len(await client.tokenize(Prompt="the house")) + 1
    assert (found.vectors, found.dim, found.layout) == (count, WIDTH, "PER_TOKEN")
    assert len(found.values) == count * WIDTH


async def test_documents_come_ranked_with_their_texts(tmp_path: Path) -> None:
    documents = ["a river", "bread", "the stone"]
    async with holding(tmp_path, ModelFile=str(tiny_reranker()), Reranking=True) as (_, client):
        every = await client.rerank(query="the house", documents=documents)
        best = await client.rerank(query="the house", documents=documents, top_n=1)
    scores = [each.score for each in every.results]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 3
    assert [documents[each.index] for each in every.results] == [each.text for each in every.results]
    assert [each.index for each in best.results] == [every.results[0].index]
    assert every.total_tokens >= every.prompt_tokens > 0
