"""Clients, as upstreams see them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from remuda.inference.answers import (
    AnswerFormat,
    AudioSink,
    ByteSink,
    MediaSink,
    Score,
    TextSink,
    Tokens,
    Transcript,
    Usage,
    Vector,
)


@dataclass
class RelayedClient:
    """Implements inference.answers.AnswerSink: keeps what is relayed to it, and takes nothing else."""

    status: int = 0
    content_type: bytes = b""
    pieces: list[bytes] = field(default_factory=list)
    waited_s: float = 0.25

    def spent_s(self) -> float:
        return 1.5

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

    async def tokens(self, tokens: Tokens) -> None:
        raise AssertionError("it was to be relayed")

    def media(self) -> MediaSink:
        raise AssertionError("it was to be relayed")


@dataclass
class MediaClient:
    """Implements inference.answers.AnswerSink, MediaSink and AudioSink: keeps what is not text."""

    files: list[bytes] = field(default_factory=list)
    sample_rate: int | None = None
    sound: bytes = b""
    ended: bool = False
    parts: list[str] = field(default_factory=list)
    heard: Transcript | None = None

    @property
    def begun(self) -> bool:
        return bool(self.files or self.parts or self.heard or self.sample_rate is not None)

    def relay(self, written: AnswerFormat) -> ByteSink | None:
        return None

    def texts(self, count: int) -> TextSink:
        raise AssertionError("it was to be media")

    async def vectors(self, vectors: Sequence[Vector], usage: Usage) -> None:
        raise AssertionError("it was to be media")

    async def scores(self, scores: Sequence[Score], usage: Usage) -> None:
        raise AssertionError("it was to be media")

    async def tokens(self, tokens: Tokens) -> None:
        raise AssertionError("it was to be media")

    def media(self) -> MediaSink:
        return self

    async def images(self, images: Sequence[bytes]) -> None:
        self.files += images

    async def transcribed(self, text: str) -> None:
        self.parts.append(text)

    async def transcript(self, transcript: Transcript) -> None:
        self.heard = transcript

    def audio(self) -> AudioSink:
        return self

    async def begin(self, sample_rate: int) -> None:
        assert self.sample_rate is None, "it began twice"
        self.sample_rate = sample_rate

    async def write(self, data: bytes) -> None:
        self.sound += data

    async def end(self) -> None:
        self.ended = True
