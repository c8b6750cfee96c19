"""Texts and chats as tokens, by servers that speak HTTP. OpenAI has no path for that: llama.cpp's server and
vLLM have one each, under the same name.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

import msgspec

from remuda.inference.answers import Tokens
from remuda.inference.failures import Fault, InputUnsupported, RequestUnsupported, UpstreamFailed
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest, Part, TokenizeRequest

TOKENIZE: Final = "/tokenize"
APPLY_TEMPLATE: Final = "/apply-template"  # llama.cpp's server: the prompt that it makes of a chat.
_TEXT_PARTS: Final = ("text", "refusal")

AskServer = Callable[[str, bytes], Awaitable[bytes]]
"""Posts a body to a path, and returns that of the answer. RequestUnsupported if there is no such path."""


class _Counted(msgspec.Struct):
    """llama.cpp's server tells the tokens, vLLM how many there are, too."""

    count: int | None = None
    tokens: list[int] | None = None


class _Templated(msgspec.Struct):
    prompt: str


_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_counted: Final = msgspec.json.Decoder(_Counted)
_templated: Final = msgspec.json.Decoder(_Templated)


async def tokens_of(ask: AskServer, call: InferenceCall, request: TokenizeRequest, model: str = "") -> Tokens:
    """RequestUnsupported by a server that counts no tokens. `model`: what it calls the model there."""
    if model:
        call = msgspec.structs.replace(call, model=call.model.model_copy(update={"name": model}))
    try:
        if isinstance(request.prompt, str):
            return await _of_text(ask, call, request.prompt, special=False)
        return await _of_chat(ask, call, request.prompt)
    except (msgspec.DecodeError, RecursionError):
        raise UpstreamFailed(Fault.BROKE, "the backend's answer has no tokens in it") from None


async def _of_text(ask: AskServer, call: InferenceCall, text: str, *, special: bool) -> Tokens:
    asked = {
        "model": call.model.id,
        "content": text,
        "add_special": special,
        "prompt": text,
        "add_special_tokens": special,
    }
    return await _counted_by(ask, call, asked)


async def _of_chat(ask: AskServer, call: InferenceCall, chat: ChatRequest) -> Tokens:
    if any(part.type not in _TEXT_PARTS for part in _parts(chat)):
        raise InputUnsupported(
            f"the tokens of images, audio and video for {call.model.id} cannot be counted: "
            "its tokenizer reads text only"
        )
    members = {**_members.decode(call.body), "model": call.model.id}
    try:
        prompt = _templated.decode(await ask(APPLY_TEMPLATE, msgspec.json.encode(members))).prompt
    except RequestUnsupported:
        return await _counted_by(ask, call, {**members, "add_generation_prompt": True})
    return await _of_text(ask, call, prompt, special=True)


def _parts(chat: ChatRequest) -> Iterator[Part]:
    for message in chat.messages:
        if isinstance(message.content, list):
            yield from message.content


async def _counted_by(ask: AskServer, call: InferenceCall, asked: Mapping[str, object]) -> Tokens:
    try:
        found = _counted.decode(await ask(TOKENIZE, msgspec.json.encode(asked)))
    except RequestUnsupported:
        found = _Counted()
    if found.count is None and found.tokens is None:
        raise RequestUnsupported(
            f"the server of {call.model.id} does not count tokens: "
            f"it has no {TOKENIZE}, as those of llama.cpp and vLLM have"
        )
    ids = found.tokens or ()
    return Tokens(len(ids) if found.count is None else found.count, ids)
