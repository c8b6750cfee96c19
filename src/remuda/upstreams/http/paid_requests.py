"""What servers that are paid for are sent: one limit, which is what was reserved, and only fields that are
known to leave price and model alone. Pure.

A router of models charges by what a request names beside its model: others to fall back on, searches, a
faster tier. None of that is in the price, and a key that may ask one model could ask another by it. So what
is not known is refused, as anything may mean that there.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from remuda.inference.failures import Unpriceable
from remuda.inference.model import RequestKind
from remuda.inference.requests import (
    NULL,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    RerankRequest,
)
from remuda.upstreams.http.relaying import members_of

_MAX_TOKENS: Final = "max_tokens"
_MAX_COMPLETION_TOKENS: Final = "max_completion_tokens"
_LIMITS: Final = frozenset({_MAX_TOKENS, _MAX_COMPLETION_TOKENS})
_OURS: Final = (ChatRequest, CompletionRequest, EmbeddingRequest, RerankRequest)
_THEIRS: Final = frozenset(  # OpenAI's that we do not read, and other engines' that say how to write.
    {
        *("function_call", "functions", "prompt_cache_key", "safety_identifier", "store", "verbosity"),
        *("chat_template_kwargs", "enable_thinking", "random_seed", "repetition_penalty", "safe_prompt"),
        *("include_reasoning", "input_type", "min_tokens", "stop_token_ids", "thinking", "top_a"),
    }
)
_KNOWN: Final = _THEIRS.union(*(one.__struct_fields__ for one in _OURS))
_NAME_CHARS_MAX: Final = 60  # Of a field that is named in a refusal.
_OPENAI: Final = ("api.openai.com", ".api.openai.com", ".openai.azure.com")


def limit_name(kind: RequestKind, address: str) -> str:
    """By which a server is told the limit. Each knows `max_tokens` or refuses it, which costs nothing; what
    ignores the newer name would answer without a limit. OpenAI's own refuse the older one for some models,
    and both together."""
    host = address.rpartition(":")[0].lower()
    newer = host == _OPENAI[0] or host.endswith(_OPENAI[1:])
    return _MAX_COMPLETION_TOKENS if newer and kind is RequestKind.CHAT else _MAX_TOKENS


def bounded(server: str, changed: Mapping[str, object], body: bytes) -> bytes:
    """The request with these members, and without any other limit. Unpriceable names a field that is not
    known."""
    members = {name: value for name, value in members_of(body).items() if value != NULL}
    unknown = next((name for name in members if name not in _KNOWN), None)
    if unknown is not None:
        raise Unpriceable(server, unknown[:_NAME_CHARS_MAX])
    kept = {name: value for name, value in members.items() if name not in _LIMITS}
    return msgspec.json.encode({**kept, **changed})
