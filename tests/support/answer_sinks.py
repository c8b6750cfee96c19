"""Clients, as upstreams see them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from remuda.inference.answers import AnswerFormat, ByteSink, Score, TextSink, Usage, Vector


@dataclass
class RelayedClient:
    """Implements inference.answers.AnswerSink: keeps what is relayed to it, and takes nothing else."""

    status: int = 0
    content_type: bytes = b""
    pieces: list[bytes] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        return self.status != 0

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    async def begin(self, status: int, content_type: bytes) -> None:
        self.status, self.content_type = status, content_type

    async def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def relay(self, written: AnswerFormat) -> ByteSink | None:
        return self if written == AnswerFormat.OPENAI else None

    def texts(self, count: int) -> TextSink:
        raise AssertionError("it was to be relayed")

    async def vectors(self, vectors: Sequence[Vector], usage: Usage) -> None:
        raise AssertionError("it was to be relayed")

    async def scores(self, scores: Sequence[Score], usage: Usage) -> None:
        raise AssertionError("it was to be relayed")
