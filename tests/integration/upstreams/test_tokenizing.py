"""What a text or a chat is in tokens, by replicas of each protocol: those of a chat are as many as its answer
is told to have cost, and who cannot count them says so."""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio.abc import SocketStream

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.inference.failures import Fault, InputUnsupported, RequestUnsupported, UpstreamFailed
from remuda.inference.model import InferenceCall, ReplicaEndpoint, RequestKind, Upstream
from remuda.inference.requests import ChatRequest, TokenizeRequest, openai_json
from remuda.models.config import ModelConfig
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc.upstream import GrpcUpstream
from remuda.upstreams.http.upstream import HttpUpstream
from tests.integration.backends.programs import loaded, running
from tests.integration.running import llama_server
from tests.integration.upstreams import grpc_scripts, scripted_http
from tests.integration.upstreams.grpc_rig import PARROT, call_of
from tests.integration.upstreams.scripted_http import opened_pool, whole
from tests.support.json_lines_api import JsonLinesClient
from tests.support.models import tiny_model
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.anyio

OWN_TEMPLATE = ModelConfig.model_validate(
    {**PARROT.model_dump(), "template": {"use_tokenizer_template": True}}
)
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 80}}
NOT_FOUND = whole(b'{"detail":"Not Found"}', "404 Not Found")


def of_text(text: str, model: ModelConfig = PARROT) -> InferenceCall:
    request = TokenizeRequest(model=model.id, prompt=text)
    return InferenceCall(RequestKind.TOKENIZE, request, b"{}", model, request_id="r1", created=0)


def of_chat(model: ModelConfig = PARROT, **body: object) -> InferenceCall:
    raw = msgspec.json.encode({"model": model.id, "messages": HELLO, **body})
    chat = msgspec.json.decode(raw, type=ChatRequest)
    request = TokenizeRequest(model=model.id, prompt=chat)
    return InferenceCall(RequestKind.TOKENIZE, request, openai_json(chat), model, request_id="r1", created=0)


async def tokens(upstream: Upstream, call: InferenceCall) -> tuple[int, list[int]]:
    client = JsonLinesClient()
    await upstream.serve(call, client)
    (line,) = client.lines
    return line["count"], line["tokens"]


async def _chat_cost(upstream: Upstream, model: ModelConfig, **body: object) -> int:
    """The tokens of its prompt, as the answer to a chat tells them."""
    client = JsonLinesClient()
    call = call_of(RequestKind.CHAT, {"messages": HELLO, "max_tokens": 1, **body}, model)
    await upstream.serve(call, client)
    cost: int = client.lines[-1]["prompt_eval_count"]
    return cost


@asynccontextmanager
async def _grpc(address: str) -> AsyncIterator[GrpcUpstream]:
    upstream = GrpcUpstream(ReplicaEndpoint(address), SystemClock(), SeededEntropy(7))
    try:
        yield upstream
    finally:
        await upstream.aclose()


# gRPC.


async def test_echo_counts_words_of_texts_and_chats(tmp_path: Path) -> None:
    with loaded(tmp_path) as (process, _):
        async with _grpc(process.address) as upstream:
            count, ids = await tokens(upstream, of_text("one two one"))
            in_chat = await tokens(upstream, of_chat(OWN_TEMPLATE))
            cost = await _chat_cost(upstream, OWN_TEMPLATE)

    assert (count, len(ids), ids[1] == ids[0]) == (3, 3, False)
    assert in_chat[0] == cost == 4


async def test_a_backend_that_knows_of_prompts_only_is_found_out() -> None:
    async def tokenize(request: pb.PredictOptions, context: object) -> pb.TokenizationResponse:
        return pb.TokenizationResponse(tokens=[1, *(len(word) for word in request.Prompt.split())])

    async with grpc_scripts.scripted(TokenizeString=tokenize) as address, _grpc(address) as upstream:
        text = await tokens(upstream, of_text("a bc"))
        with pytest.raises(RequestUnsupported, match="counts those of texts only") as refused:
            await tokens(upstream, of_chat(OWN_TEMPLATE))

    assert text == (3, [1, 1, 2])
    assert refused.value.status == 400


async def test_a_backend_without_tokens_says_so() -> None:
    async with grpc_scripts.scripted() as address, _grpc(address) as upstream:
        with pytest.raises(RequestUnsupported, match="polly does not do token counts"):
            await tokens(upstream, of_text("a"))


async def test_pictures_are_not_counted_by_a_guess() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "What?"}, PICTURE]}]

    async with grpc_scripts.scripted() as address, _grpc(address) as upstream:
        with pytest.raises(InputUnsupported, match="tokens of images"):
            await tokens(upstream, of_chat(messages=messages))
    async with _http({}) as (upstream_over_http, server):
        with pytest.raises(InputUnsupported, match="tokens of images"):
            await tokens(upstream_over_http, of_chat(messages=messages))
        assert server.requests == []


# HTTP.


@asynccontextmanager
async def _http(
    answers: Mapping[str, bytes],
) -> AsyncIterator[tuple[HttpUpstream, scripted_http.ScriptedServer]]:
    """A server with these paths and no others."""

    async def script(stream: SocketStream) -> None:
        path = server.requests[-1].head.split(" ")[1]
        await stream.send(answers.get(path.removeprefix("/v1/processes/m%230"), NOT_FOUND))

    async with opened_pool() as pool, scripted_http.scripted(script) as server:
        yield scripted_http.upstream_at(server, pool), server
        assert pool.busy == 0


def _sent(server: scripted_http.ScriptedServer) -> Any:
    return json.loads(server.requests[-1].body)


async def test_a_server_like_vllm_is_asked_for_the_chat_itself() -> None:
    counted = {"/tokenize": whole(b'{"count":7,"max_model_len":99,"tokens":[1,2,3,4,5,6,7]}')}
    async with _http(counted) as (upstream, server):
        assert await tokens(upstream, of_chat(tools=[TOOL])) == (7, [1, 2, 3, 4, 5, 6, 7])
        asked = _sent(server)
        assert (await tokens(upstream, of_text("x")))[0] == 7

    assert (asked["model"], asked["messages"], asked["tools"]) == ("polly", HELLO, [TOOL])
    assert (_sent(server)["prompt"], _sent(server)["add_special_tokens"]) == ("x", False)


async def test_a_server_without_a_path_for_it_says_so() -> None:
    async with _http({}) as (upstream, _):
        for call in (of_text("x"), of_chat()):
            with pytest.raises(RequestUnsupported, match="polly does not count tokens: it has no /tokenize"):
                await tokens(upstream, call)


@pytest.mark.parametrize("answer", [b"[]", b'{"count":"many"}', b"{"])
async def test_an_answer_that_makes_no_sense_is_the_servers_failure(answer: bytes) -> None:
    async with _http({"/tokenize": whole(answer)}) as (upstream, _):
        with pytest.raises(UpstreamFailed) as failed:
            await tokens(upstream, of_text("x"))

    assert failed.value.fault is Fault.BROKE


@pytest.fixture(scope="module")
def server_of_llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, words = (
        tmp_path_factory.mktemp("llama"),
        ("--port", "0", "--model", str(tiny_model()), "--context", "1024"),
    )
    with running(folder, *words, module=llama_server.__name__) as process:

        def announced() -> str | None:
            assert process.running, f"it ended:\n{process.log}"
            found = re.search(r"listening on http://(\S+)", process.log)
            return found and found[1]

        yield wait_until_blocking(announced, within=60, what="a server that listens")


@pytest.mark.parametrize("body", [{}, {"tools": [TOOL]}], ids=["plain", "with tools"])
async def test_llama_cpps_server_counts_what_it_would_read(
    server_of_llama: str, body: dict[str, Any]
) -> None:
    async with opened_pool() as pool:
        upstream = HttpUpstream(ReplicaEndpoint(server_of_llama, "http"), pool, SystemClock())
        count, ids = await tokens(upstream, of_chat(**body))
        text = await tokens(upstream, of_text("the house"))
        cost = await _chat_cost(upstream, PARROT, **body)

    assert count == len(ids) == cost
    assert 0 < text[0] < count
