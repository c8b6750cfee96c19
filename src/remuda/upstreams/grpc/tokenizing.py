"""Texts and chats as tokens: what a backend is asked, and what it makes of that."""

from collections.abc import Awaitable, Callable
from typing import Final

from remuda.inference.answers import Tokens
from remuda.inference.failures import InputUnsupported, RequestUnsupported
from remuda.inference.model import InferenceCall
from remuda.rpc import backend_pb2 as pb
from remuda.rpc.metadata import ADD_SPECIAL_TOKENS
from remuda.upstreams.grpc.predict_request import GenerationRequest

_FEW: Final = 8  # More than any backend makes of nothing.

AskBackend = Callable[[pb.PredictOptions], Awaitable[pb.TokenizationResponse]]


def text_options(call: InferenceCall, text: str) -> pb.PredictOptions:
    return pb.PredictOptions(
        Prompt=text, ModelIdentity=call.model.parameters.model, CorrelationId=call.request_id
    )


def chat_options(call: InferenceCall, generation: GenerationRequest) -> pb.PredictOptions:
    """What the backend would be sent to answer this chat. InputUnsupported with pictures and the like."""
    if generation.media:
        raise InputUnsupported(
            f"the tokens of images, audio and video for {call.model.id} cannot be counted: "
            "its tokenizer reads text only"
        )
    options = generation.options
    options.Metadata[ADD_SPECIAL_TOKENS] = "true"
    return options


async def text_tokens(ask: AskBackend, options: pb.PredictOptions) -> Tokens:
    answer = await ask(options)
    return Tokens(answer.length or len(answer.tokens), list(answer.tokens))


async def chat_tokens(ask: AskBackend, call: InferenceCall, options: pb.PredictOptions) -> Tokens:
    """RequestUnsupported by a backend that overlooks the messages: many only know of a prompt."""
    found = await text_tokens(ask, options)
    if not options.Prompt and found.count <= _FEW:
        nothing = await text_tokens(ask, text_options(call, ""))
        if found == nothing:
            raise RequestUnsupported(
                f"the tokens of a chat with {call.model.id} cannot be counted: "
                "its backend counts those of texts only"
            )
    return found
