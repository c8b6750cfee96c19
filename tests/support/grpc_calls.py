"""Requests as the gateway hands them over."""

from collections.abc import Mapping
from typing import Any

import msgspec

from remuda.inference.model import Call, Kind
from remuda.inference.requests import ChatRequest, CompletionRequest, EmbeddingRequest, RerankRequest
from remuda.models.config import ModelConfig

_REQUESTS: Mapping[Kind, Any] = {
    Kind.CHAT: ChatRequest,
    Kind.COMPLETION: CompletionRequest,
    Kind.EMBEDDING: EmbeddingRequest,
    Kind.RERANK: RerankRequest,
}
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def config_of(**keys: object) -> ModelConfig:
    return ModelConfig.model_validate(
        {"name": "m", "backend": "vllm", "parameters": {"model": "m.bin"}, **keys}
    )


def call_of(kind: Kind, body: Mapping[str, object], config: ModelConfig | None = None) -> Call:
    raw = msgspec.json.encode({"model": "m", **body})
    request = msgspec.json.decode(raw, type=_REQUESTS[kind])
    return Call(kind, request, raw, config or config_of(), request_id="r1", created=1_700_000_000)
