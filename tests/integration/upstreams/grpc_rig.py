"""Clients and calls for upstreams under test."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.gateway.openai.answer_sink import OpenAiSink
from remuda.inference.large_bodies import Slicer
from remuda.inference.model import InferenceCall, ReplicaEndpoint, RequestKind
from remuda.inference.requests import ChatRequest, CompletionRequest, EmbeddingRequest, RerankRequest
from remuda.models.config import ModelConfig
from remuda.upstreams.grpc.upstream import GrpcTimeouts, GrpcUpstream, SharedTranslation

USUAL = GrpcTimeouts()
PARROT = ModelConfig.model_validate({"name": "polly", "backend": "echo", "parameters": {"model": "parrot"}})
_REQUESTS = {
    RequestKind.CHAT: ChatRequest,
    RequestKind.COMPLETION: CompletionRequest,
    RequestKind.EMBEDDING: EmbeddingRequest,
    RequestKind.RERANK: RerankRequest,
}


@dataclass
class Client:
    """Keeps all that the gateway would send it."""

    status: int = 0
    content_type: bytes = b""
    writes: list[bytes] = field(default_factory=list)
    waited_s: float = 0.0

    def spent_s(self) -> float:
        return 0.0

    @property
    def begun(self) -> bool:
        return bool(self.status)

    async def begin(self, status: int, content_type: bytes) -> None:
        assert not self.status, "it began twice"
        self.status, self.content_type = status, content_type

    async def write(self, data: bytes) -> None:
        assert self.status, "it never began"
        self.writes.append(data)

    @property
    def body(self) -> bytes:
        return b"".join(self.writes)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def events(self) -> list[Any]:
        """What was streamed, the end left out."""
        *events, done, rest = self.body.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b""), "the stream has no end"
        return [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events]

    @property
    def text(self) -> str:
        """The content of the first answer."""
        choices = [choice for event in self.events for choice in event["choices"] if choice["index"] == 0]
        return "".join(c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices)


def call_of(kind: RequestKind, body: Mapping[str, object], model: ModelConfig = PARROT) -> InferenceCall:
    raw = msgspec.json.encode({"model": model.id, **body})
    request = msgspec.json.decode(raw, type=_REQUESTS[kind])
    return InferenceCall(kind, request, raw, model, request_id="r1", created=1_700_000_000)


def chat(text: str = "one two three", model: ModelConfig = PARROT, **body: object) -> InferenceCall:
    messages = [{"role": "user", "content": text}]
    return call_of(RequestKind.CHAT, {"messages": messages, "stream": True, **body}, model)


@dataclass(frozen=True)
class Rendered:
    """An upstream, whose answers are rendered as the gateway does it."""

    upstream: GrpcUpstream
    translation: SharedTranslation

    async def serve(self, call: InferenceCall, client: Client) -> None:
        await self.upstream.serve(call, OpenAiSink(call, client, Slicer(SystemClock())))

    @property
    def open_calls(self) -> int:
        return self.upstream.open_calls

    async def aclose(self) -> None:
        await self.upstream.aclose()


@asynccontextmanager
async def upstream_at(
    address: str, token: str = "", timeouts: GrpcTimeouts = USUAL
) -> AsyncIterator[Rendered]:
    translation = SharedTranslation(SystemClock())
    upstream = GrpcUpstream(
        ReplicaEndpoint(address, token=token), SystemClock(), SeededEntropy(7), timeouts, translation
    )
    try:
        yield Rendered(upstream, translation)
        assert upstream.open_calls == 0
    finally:
        await upstream.aclose()
