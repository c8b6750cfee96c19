"""A second API, to show that answers are tied to none: JSON lines, much as Ollama's chat has them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from remuda.inference.answers import (
    NOTHING,
    AnswerFormat,
    ByteSink,
    Delta,
    FinishReason,
    MediaSink,
    Score,
    TextSink,
    Tokens,
    Usage,
    Vector,
)


@dataclass
class JsonLinesClient:
    """Implements inference.answers.AnswerSink: renders each typed part as a line."""

    body: bytes = b""
    finished: dict[int, FinishReason] = field(default_factory=dict)

    @property
    def begun(self) -> bool:
        return bool(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    def relay(self, written: AnswerFormat) -> ByteSink | None:
        return None

    def texts(self, count: int) -> TextSink:
        return self

    async def write(self, index: int, delta: Delta) -> None:
        message: dict[str, object] = {"content": delta.text}
        if delta.reasoning:
            message["thinking"] = delta.reasoning
        if delta.tool_calls:
            message["tool_calls"] = [[call.name, call.arguments] for call in delta.tool_calls]
        self._line(index=index, message=message, done=False)

    async def finish(self, index: int, reason: FinishReason, last: Delta = NOTHING) -> None:
        if last != NOTHING:
            await self.write(index, last)
        self.finished[index] = reason

    async def end(self, usage: Usage) -> None:
        reasons = [self.finished[index] for index in sorted(self.finished)]
        self._line(done=True, done_reason=reasons, prompt_eval_count=usage[0], eval_count=usage[1])

    async def vectors(self, vectors: Sequence[Vector], usage: Usage) -> None:
        self._line(embeddings=[list(vector) for vector in vectors], prompt_eval_count=usage.prompt_tokens)

    async def scores(self, scores: Sequence[Score], usage: Usage) -> None:
        self._line(scores={score.index: score.relevance for score in scores})

    async def tokens(self, tokens: Tokens) -> None:
        self._line(count=tokens.count, tokens=list(tokens.ids))

    def media(self) -> MediaSink:
        raise AssertionError("it has text only")

    def _line(self, **members: object) -> None:
        self.body += json.dumps(members).encode() + b"\n"
