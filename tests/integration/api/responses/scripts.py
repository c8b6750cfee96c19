"""What replicas answer."""

from collections.abc import Awaitable, Callable

from remuda.inference.answers import AnswerSink, Delta, FinishReason, ToolCallDelta, Usage
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.model import InferenceCall
from remuda.inference.requests import ChatRequest

Answering = Callable[[InferenceCall, AnswerSink], Awaitable[None]]


def answers(*deltas: Delta, reason: FinishReason = FinishReason.STOP) -> Answering:
    async def answer(call: InferenceCall, sink: AnswerSink) -> None:
        texts = sink.texts(1)
        for delta in deltas[:-1]:
            await texts.write(0, delta)
        await texts.finish(0, reason, deltas[-1])
        await texts.end(Usage(3, 2, cached_tokens=1, reasoning_tokens=1))

    return answer


def says(*words: str) -> Answering:
    return answers(*(Delta(word) for word in words))


def calls(name: str, arguments: str) -> Answering:
    part = ToolCallDelta(0, "call-1", name)
    rest = ToolCallDelta(0, arguments=arguments)
    return answers(Delta(tool_calls=[part]), Delta(tool_calls=[rest]), reason=FinishReason.TOOL_CALLS)


class Remembering:
    """Says hello, and keeps the chats that it was asked."""

    def __init__(self) -> None:
        self.chats: list[ChatRequest] = []

    async def __call__(self, call: InferenceCall, sink: AnswerSink) -> None:
        assert isinstance(call.request, ChatRequest)
        self.chats.append(call.request)
        await says(f"Hello {len(self.chats)}")(call, sink)


async def breaks_off(call: InferenceCall, sink: AnswerSink) -> None:
    await sink.texts(1).write(0, Delta("Hel"))
    raise UpstreamFailed(Fault.BROKE, "the backend's answer stopped before its end")
