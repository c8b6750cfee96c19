"""What replicas answer, whatever API the client speaks, and who receives it.

An upstream passes on typed parts of an answer as they come; the gateway renders them for its client. A
request may have several answers, told apart by their index: `n` for each of its prompts, one prompt after the
other.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from msgspec import Struct


class ToolCallDelta(Struct, frozen=True):
    """A part of a call to a tool. All parts of one call have its index; id and name come with the first."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""  # JSON text, to be joined.


class Delta(NamedTuple):
    """What one answer says next; about one for each token, so it is made cheaply.

    `logprobs` is a JSON array with one object for each token (`token`, `logprob`, `top_logprobs`), checked to
    be one: backends send it as text, and it is passed on without loss. Empty: none.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: Sequence[ToolCallDelta] = ()
    logprobs: bytes = b""


NOTHING: Final = Delta()


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class Usage(NamedTuple):
    """What an answer took. None: the backend does not say."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None  # Of the prompt: known from an earlier one, so not computed again.
    reasoning_tokens: int | None = None  # Of the completion.
    prompt_ms: float | None = None  # For reading the prompt.
    completion_ms: float | None = None  # For writing the answer. Unknown for several answers.

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


Vector = Sequence[float]


class Score(Struct, frozen=True):
    """How well a document fits a query."""

    index: int  # Of the document, as the backend has it: it may be out of range.
    relevance: float


class Tokens(Struct, frozen=True):
    """What a text is to a model. Not every backend that counts tokens tells them: `ids` may be empty."""

    count: int
    ids: Sequence[int] = ()


class TranscriptWord(Struct, frozen=True):
    start_s: float
    end_s: float
    text: str


class TranscriptSegment(Struct, frozen=True):
    """A stretch of speech, as the backend divides it."""

    id: int
    start_s: float
    end_s: float
    text: str
    tokens: Sequence[int] = ()
    speaker: str = ""
    words: Sequence[TranscriptWord] = ()


class Transcript(Struct, frozen=True):
    """What was said in a recording. An empty language and a duration of 0 are not known."""

    text: str
    segments: Sequence[TranscriptSegment] = ()
    language: str = ""
    duration_s: float = 0.0


class TextSink(Protocol):
    """Receives the text of all answers to one request. Several answers may be written by several tasks."""

    async def write(self, index: int, delta: Delta) -> None: ...

    async def finish(self, index: int, reason: FinishReason, last: Delta = NOTHING) -> None:
        """One answer is complete; `last` is what was still to be said."""
        ...

    async def end(self, usage: Usage) -> None:
        """All answers are complete. Called once, after each was finished."""
        ...


class AudioSink(Protocol):
    """Receives one recording in pieces."""

    async def begin(self, sample_rate: int) -> None:
        """0: it is a file, which says all about itself; else samples of 16 bits, of one channel."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def end(self) -> None: ...


class MediaSink(Protocol):
    """Receives answers that are not text, and what was heard."""

    async def images(self, images: Sequence[bytes]) -> None:
        """The whole answer to a request for images: files, in whatever format the backend writes."""
        ...

    async def transcribed(self, text: str) -> None:
        """A further part of the text, while it is written down. Only of a request for a stream."""
        ...

    async def transcript(self, transcript: Transcript) -> None:
        """The whole of it, and the end of the answer."""
        ...

    def audio(self) -> AudioSink:
        """For speech and sounds."""
        ...


class AnswerFormat(StrEnum):
    """How an answer looks as bytes: what clients read, and what some replicas write."""

    OPENAI = "openai"


class ByteSink(Protocol):
    """Receives an answer that is already in the client's own format."""

    async def begin(self, status: int, content_type: bytes) -> None: ...

    async def write(self, data: bytes) -> None: ...


class AnswerSink(Protocol):
    """The client, as an upstream sees it. Calls wait while it reads slowly, and raise when it is gone.

    An upstream uses one of these ways for a call, as fits the request. What a replica had not finished when
    it failed is dropped, unless some of it was sent.
    """

    @property
    def begun(self) -> bool:
        """Something was sent: the request can no longer be given to another replica."""
        ...

    def relay(self, written: AnswerFormat) -> ByteSink | None:
        """Where bytes of this format are passed on untouched. None: the client reads another format."""
        ...

    def texts(self, count: int) -> TextSink:
        """For so many answers to a chat or completion."""
        ...

    async def vectors(self, vectors: Sequence[Vector], usage: Usage) -> None:
        """The whole answer to a request for embeddings: one vector for each input."""
        ...

    async def scores(self, scores: Sequence[Score], usage: Usage) -> None:
        """The whole answer to a request for a ranking, in any order."""
        ...

    async def tokens(self, tokens: Tokens) -> None:
        """The whole answer to a request for tokens."""
        ...

    def media(self) -> MediaSink:
        """For images, transcripts, speech and sounds."""
        ...
