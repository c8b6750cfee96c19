"""Requests as the gateway hands them over."""

from collections.abc import Mapping
from typing import Any

import msgspec

from remuda.inference.model import InferenceCall, RequestKind
from remuda.inference.requests import ChatRequest, CompletionRequest, EmbeddingRequest, RerankRequest
from remuda.models.config import ModelConfig

_REQUESTS: Mapping[RequestKind, Any] = {
    RequestKind.CHAT: ChatRequest,
    RequestKind.COMPLETION: CompletionRequest,
    RequestKind.EMBEDDING: EmbeddingRequest,
    RequestKind.RERANK: RerankRequest,
}
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def config_of(**keys: object) -> ModelConfig:
    return ModelConfig.model_validate(
        {"name": "m", "backend": "vllm", "parameters": {"model": "m.bin"}, **keys}
    )


def call_of(
    kind: RequestKind, body: Mapping[str, object], config: ModelConfig | None = None
) -> InferenceCall:
    raw = msgspec.json.encode({"model": "m", **body})
    request = msgspec.json.decode(raw, type=_REQUESTS[kind])
    return InferenceCall(kind, request, raw, config or config_of(), request_id="r1", created=1_700_000_000)
