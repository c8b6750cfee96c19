"""Texts and chats as tokens, as LocalAI, llama.cpp's server and vLLM offer it to their clients. Pure."""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from remuda.gateway.inference.bodies import decoded
from remuda.gateway.inference.body_errors import Choices, InvalidField
from remuda.inference.answers import Tokens
from remuda.inference.model import InferenceCall
from remuda.inference.requests import NULL, ChatRequest, ModelName, TokenizeRequest

_absent: Final = NULL.copy
_NULL: Final = b"null"


class TokenizeBody(Struct, kw_only=True):
    """A text, as `content` (LocalAI, llama.cpp) or `prompt` (vLLM), or the `messages` of a chat with its
    `tools`."""

    model: ModelName
    content: str | None = None
    prompt: str | None = None
    messages: Raw = msgspec.field(default_factory=_absent)
    tools: Raw = msgspec.field(default_factory=_absent)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


_BODY: Final = msgspec.json.Decoder(TokenizeBody)
_CHAT: Final = msgspec.json.Decoder(ChatRequest)


def tokenize_request(body: bytes, choices: Choices) -> TokenizeRequest:
    known = decoded(_BODY, body, choices)
    given = {"content": known.content, "prompt": known.prompt, "messages": _given(known.messages)}
    names = [name for name, value in given.items() if value is not None]
    if names == ["content", "prompt"] and known.content == known.prompt:  # For whichever server it is.
        return TokenizeRequest(model=known.model, prompt=known.prompt or "")
    if len(names) != 1:
        also = f", not {' and '.join(names)}" if names else ""
        raise InvalidField(f"one of content, prompt and messages says what to tokenize{also}", "content")
    if known.return_token_strs:
        words = "return_token_strs: backends return the ids of tokens only"
        raise InvalidField(words, "return_token_strs", hint="leave it out")
    if names == ["messages"]:
        if known.add_generation_prompt is False:
            words = "add_generation_prompt: the opening of the answer always counts"
            raise InvalidField(words, "add_generation_prompt", hint="leave it out")
        return TokenizeRequest(model=known.model, prompt=decoded(_CHAT, body, choices))
    if known.add_special_tokens:
        words = "add_special_tokens: a text is read as it stands, without tokens around it"
        raise InvalidField(words, "add_special_tokens", hint="leave it out, or send messages")
    return TokenizeRequest(model=known.model, prompt=(known.content or "") + (known.prompt or ""))


def _given(messages: Raw) -> bytes | None:
    return None if bytes(messages) == _NULL else bytes(messages)


def tokens_answer(call: InferenceCall, tokens: Tokens) -> bytes:
    """What is not known is null: not every backend tells the tokens that it counts."""
    told = list(tokens.ids) if tokens.ids or not tokens.count else None
    return msgspec.json.encode({"tokens": told, "count": tokens.count, "max_model_len": call.context or None})
