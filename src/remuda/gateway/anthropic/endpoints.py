"""What Anthropic's API offers where a model answers: each path with its request. Pure."""

from typing import Final

import msgspec

from remuda.gateway.anthropic.answer_sink import AnthropicSink
from remuda.gateway.anthropic.messages import CountTokensBody, MessagesBody, Thinking
from remuda.gateway.anthropic.rendering import ANTHROPIC
from remuda.gateway.anthropic.translation import chat_of
from remuda.gateway.inference.bodies import decoded
from remuda.gateway.inference.body_errors import Choices
from remuda.gateway.inference.chat_json import chat_json
from remuda.gateway.inference.endpoint import ApiEndpoint
from remuda.gateway.inference.text_sinks import ResponseSink
from remuda.inference.large_bodies import Slicer
from remuda.inference.model import InferenceCall, RequestKind
from remuda.inference.requests import ChatRequest, TokenizeRequest

MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
_BLOCKS: Final = (
    "text",
    "image",
    "document",
    "search_result",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
)
_CHOICES: Final[Choices] = {
    "messages.role": ("user", "assistant", "system"),
    "messages.content.type": _BLOCKS,
    "messages.content.content.type": ("text", "image", "document", "search_result", "tool_reference"),
    "messages.content.source.type": ("base64", "url", "text", "content"),
    "system.type": ("text",),
    "tool_choice.type": ("auto", "any", "tool", "none"),
    "thinking.type": ("enabled", "disabled", "adaptive"),
    "output_config.effort": ("low", "medium", "high", "xhigh", "max"),
}
_MESSAGES: Final = msgspec.json.Decoder(MessagesBody)
_COUNT_TOKENS: Final = msgspec.json.Decoder(CountTokensBody)


class MessagesRequest(msgspec.Struct, frozen=True):
    """Implements gateway.inference.endpoint.ParsedRequest."""

    request: ChatRequest
    shows_thinking: bool = True

    def openai_body(self, body: bytes) -> bytes:
        return chat_json(self.request)

    def sink(self, call: InferenceCall, response: ResponseSink, slicer: Slicer) -> AnthropicSink:
        return AnthropicSink(call, response, shows_thinking=self.shows_thinking)


class CountTokensRequest(msgspec.Struct, frozen=True):
    """Implements gateway.inference.endpoint.ParsedRequest."""

    request: TokenizeRequest

    def openai_body(self, body: bytes) -> bytes:
        assert isinstance(self.request.prompt, ChatRequest)
        return chat_json(self.request.prompt)

    def sink(self, call: InferenceCall, response: ResponseSink, slicer: Slicer) -> AnthropicSink:
        return AnthropicSink(call, response, shows_thinking=False)


def _messages(body: bytes) -> MessagesRequest:
    known = decoded(_MESSAGES, body, _CHOICES)
    return MessagesRequest(chat_of(known), _shows(known.thinking))


def _shows(thinking: Thinking | None) -> bool:
    """Some models think although they are asked not to."""
    return thinking is None or (thinking.type != "disabled" and thinking.display != "omitted")


def _count_tokens(body: bytes) -> CountTokensRequest:
    chat = chat_of(decoded(_COUNT_TOKENS, body, _CHOICES))
    return CountTokensRequest(TokenizeRequest(model=chat.model, prompt=chat))


ENDPOINTS: Final = {
    MESSAGES: ApiEndpoint(RequestKind.CHAT, ANTHROPIC, MessagesBody, _messages),
    COUNT_TOKENS: ApiEndpoint(RequestKind.TOKENIZE, ANTHROPIC, CountTokensBody, _count_tokens),
}
