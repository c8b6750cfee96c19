"""A caller of backends as LocalAI's wire contract describes one, with plain values in and out.

Options are spelled as in the contract: `client.predict(Prompt="Hello", Tokens=8)`. It knows nothing of ours.
"""

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from tests.peers.backend_proto import CLASSES, LAYOUTS, RPCS, STATES, TRANSPORT, build

_CALL_S = 30.0
_STATE_NAMES = {number: name for name, number in STATES.items()}
_LAYOUT_NAMES = {number: name for name, number in LAYOUTS.items()}


class CallFailed(Exception):
    """The backend, or the way to it, ended a call with another status than OK."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self.code = code  # Such as `NOT_FOUND`.
        self.details = details


@dataclass(frozen=True, slots=True)
class Outcome:
    success: bool
    message: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    message: bytes  # In a stream it may end in the middle of a character.
    tokens: int
    prompt_tokens: int
    prompt_ms: float
    generation_ms: float
    logprobs: object  # Decoded from JSON; None without any.
    deltas: tuple[Delta, ...]

    @property
    def text(self) -> str:
        return self.message.decode()


@dataclass(frozen=True, slots=True)
class Embedding:
    values: tuple[float, ...]  # All vectors, one after the other.
    vectors: int  # 0 from a backend that does not say.
    dim: int
    prompt_tokens: int
    layout: str


@dataclass(frozen=True, slots=True)
class Ranked:
    index: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Ranking:
    results: tuple[Ranked, ...]
    total_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Status:
    state: str
    memory_bytes: int
    memory_breakdown: tuple[tuple[str, int], ...]  # By name, in order.


@dataclass(frozen=True, slots=True)
class Metrics:
    slot_id: int
    prompt_json: str
    tokens_per_s: float
    tokens_generated: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Metadata:
    supports_thinking: bool
    rendered_template: str
    media_marker: str


class BackendClient:
    """One channel to one backend. Use it as a context; every call has a deadline."""

    def __init__(self, address: str, token: str = "", *, call_s: float = _CALL_S) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=TRANSPORT)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._call_s = call_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def health(self) -> str:
        """What it says of itself: `OK` when it can be called."""
        reply: bytes = (await self._ask("Health")).message
        return reply.decode()

    async def free(self) -> Outcome:
        return _outcome(await self._ask("Free"))

    async def load_model(self, **options: object) -> Outcome:
        return _outcome(await self._ask("LoadModel", options))

    async def predict(self, **options: object) -> Reply:
        return _reply(await self._ask("Predict", options))

    async def predict_stream(self, **options: object) -> AsyncGenerator[Reply, None]:
        """Closing the iterator before its end is how a caller leaves: the backend sees a cancelled call."""
        call = self._call("PredictStream", options)
        try:
            async for reply in call:
                yield _reply(reply)
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from error
        finally:
            call.cancel()

    async def embedding(self, **options: object) -> Embedding:
        found = await self._ask("Embedding", options)
        layout = _LAYOUT_NAMES[found.layout]
        return Embedding(tuple(found.embeddings), found.tokens, found.dim, found.prompt_tokens, layout)

    async def rerank(self, **options: object) -> Ranking:
        found = await self._ask("Rerank", options)
        results = tuple(Ranked(each.index, each.text, each.relevance_score) for each in found.results)
        return Ranking(results, found.usage.total_tokens, found.usage.prompt_tokens)

    async def tokenize(self, **options: object) -> tuple[int, ...]:
        """The ids of the text in `Prompt`."""
        found = await self._ask("TokenizeString", options)
        assert found.length == len(found.tokens), "the count disagrees with the tokens"
        return tuple(found.tokens)

    async def detokenize(self, tokens: tuple[int, ...]) -> str:
        content: str = (await self._ask("Detokenize", {"tokens": tokens})).content
        return content

    async def status(self) -> Status:
        found = await self._ask("Status")
        breakdown = tuple(sorted(found.memory.breakdown.items()))
        return Status(_STATE_NAMES[found.state], found.memory.total, breakdown)

    async def metrics(self) -> Metrics:
        found = await self._ask("GetMetrics")
        return Metrics(
            found.slot_id,
            found.prompt_json_for_slot,
            found.tokens_per_second,
            found.tokens_generated,
            found.prompt_tokens_processed,
        )

    async def model_metadata(self, **options: object) -> Metadata:
        found = await self._ask("ModelMetadata", options)
        return Metadata(found.supports_thinking, found.rendered_template, found.media_marker)

    async def _ask(self, name: str, fields: dict[str, object] | None = None) -> Any:
        try:
            return await self._call(name, fields or {})
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from error

    def _call(self, name: str, fields: dict[str, object]) -> Any:
        rpc = RPCS[name]
        open_method = self._channel.unary_stream if rpc.streams else self._channel.unary_unary
        method = open_method(
            rpc.path,
            request_serializer=CLASSES[rpc.request].SerializeToString,
            response_deserializer=CLASSES[rpc.reply].FromString,
        )
        return method(build(rpc.request, **fields), metadata=self._metadata, timeout=self._call_s)


def _failure(error: Any) -> CallFailed:
    return CallFailed(error.code().name, error.details() or "")


def _outcome(result: Any) -> Outcome:
    return Outcome(result.success, result.message)


def _reply(reply: Any) -> Reply:
    return Reply(
        message=reply.message,
        tokens=reply.tokens,
        prompt_tokens=reply.prompt_tokens,
        prompt_ms=reply.timing_prompt_processing,
        generation_ms=reply.timing_token_generation,
        logprobs=json.loads(reply.logprobs) if reply.logprobs else None,
        deltas=tuple(_delta(delta) for delta in reply.chat_deltas),
    )


def _delta(delta: Any) -> Delta:
    calls = tuple(ToolCall(call.index, call.id, call.name, call.arguments) for call in delta.tool_calls)
    return Delta(delta.content, delta.reasoning_content, calls)
