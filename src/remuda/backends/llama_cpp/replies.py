"""From the engine's answers, single ones and events of a stream, to the messages of backend.proto. Pure;
runs for every token, so each event is decoded once.

A completion's text is passed on as it is. A chat's comes apart as deltas too; only there, for a reader of
deltas looks for reasoning and tool calls nowhere else.
"""

import array
import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from remuda.backends.llama_cpp.connection import refusal
from remuda.rpc import backend_pb2 as pb

_METRIC_PREFIX = "llamacpp:"


def pooled_embedding(answer: Mapping[str, Any]) -> pb.EmbeddingResult:
    """One vector for the whole text."""
    vector = array.array("f", base64.b64decode(answer["data"][0]["embedding"]))
    if sys.byteorder == "big":
        vector.byteswap()
    return pb.EmbeddingResult(
        embeddings=vector,
        tokens=1,
        dim=len(vector),
        prompt_tokens=answer["usage"]["prompt_tokens"],
        layout=pb.EMBEDDING_LAYOUT_FINAL,
    )


def token_embeddings(answer: Sequence[Mapping[str, Any]]) -> pb.EmbeddingResult:
    """One vector for each token, from a model that does not say how to make one of them."""
    vectors: Sequence[Sequence[float]] = answer[0]["embedding"]
    return pb.EmbeddingResult(
        embeddings=[value for vector in vectors for value in vector],
        tokens=len(vectors),
        dim=len(vectors[0]),
        prompt_tokens=len(vectors),
        layout=pb.EMBEDDING_LAYOUT_PER_TOKEN,
    )


def rerank_result(answer: Mapping[str, Any], documents: Sequence[str]) -> pb.RerankResult:
    """The most relevant first."""
    usage = answer["usage"]
    ranked = sorted(answer["results"], key=lambda result: (-result["relevance_score"], result["index"]))
    return pb.RerankResult(
        usage=pb.Usage(total_tokens=usage["total_tokens"], prompt_tokens=usage["prompt_tokens"]),
        results=[
            pb.DocumentResult(
                index=result["index"],
                text=documents[result["index"]],
                relevance_score=result["relevance_score"],
            )
            for result in ranked
        ],
    )


def metrics_response(exposition: str) -> pb.MetricsResponse:
    """Of all slots together. What they work on is left out: metrics are read by others than those who ask."""
    values = dict(
        line.removeprefix(_METRIC_PREFIX).split(maxsplit=1)
        for line in exposition.splitlines()
        if line.startswith(_METRIC_PREFIX)
    )
    return pb.MetricsResponse(
        tokens_per_second=float(values.get("predicted_tokens_seconds", 0)),
        tokens_generated=int(float(values.get("tokens_predicted_total", 0))),
        prompt_tokens_processed=int(float(values.get("prompt_tokens_total", 0))),
    )


def completion_reply(events: Sequence[bytes]) -> pb.Reply | None:
    """One Reply for events that came together; None if they say nothing to the caller."""
    reply = pb.Reply()
    text: list[str] = []
    probabilities: list[Any] = []
    for event in map(_decoded, events):
        if "tokens_predicted" not in event or "prompt_progress" in event:
            continue
        text.append(event["content"])
        reply.tokens = event["tokens_predicted"]
        reply.prompt_tokens = event["tokens_evaluated"]
        probabilities += event.get("completion_probabilities") or ()
        if "timings" in event:
            _add_timings(reply, event["timings"])
    return _finished(reply, text, probabilities)


def chat_reply(events: Sequence[bytes]) -> pb.Reply | None:
    """One Reply for events that came together; None if they say nothing to the caller."""
    reply = pb.Reply()
    text: list[str] = []
    probabilities: list[Any] = []
    for event in map(_decoded, events):
        for choice in event["choices"]:
            delta = choice["delta"]
            if content := delta.get("content"):
                text.append(content)
            _add_delta(reply, delta)
            probabilities += (choice.get("logprobs") or {}).get("content") or ()
        if timings := event.get("timings"):
            reply.tokens = timings["predicted_n"]
            reply.prompt_tokens = timings["prompt_n"] + timings["cache_n"]
            _add_timings(reply, timings)
    return _finished(reply, text, probabilities)


def stopping_word(events: Sequence[bytes]) -> str:
    """The stop sequence at which the text ended, if it did; in the last event."""
    for event in map(_decoded, (each for each in events if b'"stopping_word"' in each)):
        told = event.get("__verbose", event)
        if told.get("stop_type") == "word":
            return str(told["stopping_word"])
    return ""


def cached_tokens(events: Sequence[bytes]) -> int | None:
    """How many of the prompt's tokens the engine knew from earlier ones; None: not in this event."""
    for event in map(_decoded, (each for each in events if b'"cache_n"' in each)):
        if timings := event.get("timings"):
            return int(timings["cache_n"])
    return None


def whole(replies: Iterable[pb.Reply]) -> pb.Reply:
    """One Reply that says what all of a stream said."""
    last = pb.Reply()
    text: list[bytes] = []
    probabilities: list[Any] = []
    deltas: list[pb.ChatDelta] = []
    for reply in replies:
        last = reply
        text.append(reply.message)
        deltas += reply.chat_deltas
        if reply.logprobs:
            probabilities += json.loads(reply.logprobs)["content"]
    return pb.Reply(
        message=b"".join(text),
        tokens=last.tokens,
        prompt_tokens=last.prompt_tokens,
        timing_prompt_processing=last.timing_prompt_processing,
        timing_token_generation=last.timing_token_generation,
        logprobs=_logprobs(probabilities),
        chat_deltas=[_joined(deltas)] if deltas else [],
    )


def _decoded(event: bytes) -> Mapping[str, Any]:
    decoded: Mapping[str, Any] = json.loads(event)
    if "error" in decoded:
        raise refusal(int(decoded["error"].get("code", 500)), event)
    return decoded


def _finished(reply: pb.Reply, text: Sequence[str], probabilities: Sequence[Any]) -> pb.Reply | None:
    reply.message = "".join(text).encode()
    reply.logprobs = _logprobs(probabilities)
    has_content = reply.message or reply.chat_deltas or reply.logprobs or reply.timing_token_generation
    return reply if has_content else None


def _logprobs(probabilities: Sequence[Any]) -> bytes:
    return json.dumps({"content": probabilities}).encode() if probabilities else b""


def _add_timings(reply: pb.Reply, timings: Mapping[str, float]) -> None:
    reply.timing_prompt_processing = timings["prompt_ms"]
    reply.timing_token_generation = timings["predicted_ms"]


def _add_delta(reply: pb.Reply, delta: Mapping[str, Any]) -> None:
    content, reasoning = delta.get("content") or "", delta.get("reasoning_content") or ""
    calls = delta.get("tool_calls") or ()
    if content or reasoning or calls:
        reply.chat_deltas.add(
            content=content, reasoning_content=reasoning, tool_calls=[_tool_call(call) for call in calls]
        )


def _tool_call(call: Mapping[str, Any]) -> pb.ToolCallDelta:
    function = call.get("function") or {}
    return pb.ToolCallDelta(
        index=call.get("index", 0),
        id=call.get("id") or "",
        name=function.get("name") or "",
        arguments=function.get("arguments") or "",
    )


def _joined(deltas: Sequence[pb.ChatDelta]) -> pb.ChatDelta:
    calls: dict[int, pb.ToolCallDelta] = {}
    for part in (call for delta in deltas for call in delta.tool_calls):
        call = calls.setdefault(part.index, pb.ToolCallDelta(index=part.index))
        call.id = call.id or part.id
        call.name = call.name or part.name
        call.arguments += part.arguments
    return pb.ChatDelta(
        content="".join(delta.content for delta in deltas),
        reasoning_content="".join(delta.reasoning_content for delta in deltas),
        tool_calls=list(calls.values()),
    )
