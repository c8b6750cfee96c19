"""One request on its way to a replica, and the replicas that can answer it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from remuda.inference.answers import AnswerSink
from remuda.inference.media_requests import MediaRequest, TranscriptionRequest
from remuda.inference.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    RerankRequest,
    TokenizeRequest,
)
from remuda.models.config import ModelConfig


class RequestKind(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    TOKENIZE = "tokenize"
    IMAGE = "image"
    TRANSCRIPTION = "transcription"
    SPEECH = "speech"
    SOUND = "sound"

    __hash__ = str.__hash__  # An enum's own is written in Python, and every request hashes its kind often.


TEXTS: Final = frozenset({RequestKind.CHAT, RequestKind.COMPLETION})
WITH_FILES: Final = frozenset(
    {RequestKind.IMAGE, RequestKind.TRANSCRIPTION, RequestKind.SPEECH, RequestKind.SOUND}
)
Request = ChatRequest | CompletionRequest | EmbeddingRequest | RerankRequest | TokenizeRequest
_STREAMABLE: Final = (ChatRequest, CompletionRequest, TranscriptionRequest)


class CallTally(msgspec.Struct):
    """What one request came to; filled in by the part that knows. Clock readings are monotonic seconds."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    kept_tokens: int = 0  # Of the prompt: those that the server was paid for keeping, too.
    usage_told: bool = False  # The backend has said how many tokens there were; else they were counted here.
    stop_sequence: str = ""  # At which the answer ended, of those asked for; empty: at none, or not known.
    costs: tuple[tuple[str, int], ...] = ()  # What paid servers were given for it, in core.prices.Money.

    def token_came(self, now_s: float) -> None:
        self.last_token_s = now_s
        if self.first_token_s is None:
            self.first_token_s = now_s


@dataclass(frozen=True, slots=True)
class ReplicaEndpoint:
    """Where a replica listens."""

    address: str
    protocol: str = ""  # Empty: gRPC.
    path: str = ""  # Of one that speaks HTTP: its place at `address`.
    token: str = field(default="", repr=False)
    server: str = ""  # Of one on an adopted server, the server's name.
    model: str = ""  # What the model is called there; empty: as it is here.
    encrypted: bool = False
    versioned: bool = False  # `path` has the version of the API in it, which else is /v1.

    def __hash__(self) -> int:
        """Every request looks its endpoint up; of all fields that takes four times as long."""
        return hash((self.address, self.path, self.model))


class InferenceCall(msgspec.Struct, frozen=True):
    """Made for every request, for which a frozen dataclass takes ten times as long. `written`: the body, or
    what writes it."""

    kind: RequestKind
    request: Request | MediaRequest
    written: bytes | Callable[[], bytes]
    model: ModelConfig
    request_id: str
    created: int  # Unix seconds: the answer's `created`.
    tally: CallTally = msgspec.field(default_factory=CallTally)
    context: int = 0  # Tokens that the model is loaded for; 0: not known.
    max_tokens: int = 0  # Of each answer, in place of any limit in the request; 0: that stays.
    paid: bool = False  # What it takes is paid for, and so has to be known.
    files: ReplicaEndpoint | None = None  # The chosen replica's worker, for the files of the request.

    @property
    def body(self) -> bytes:
        """The request as OpenAI's JSON. Of a client that speaks OpenAI's API it is what came: what is relayed
        rather than translated stays as it was written. Of any other it is written when it is asked for:
        backends that speak gRPC have no use for it. Of a chat to be made into tokens it is that chat.
        Requests with files have none."""
        return self.written if isinstance(self.written, bytes) else self.written()

    @property
    def stream(self) -> bool:
        """Whether the answer is a stream of events."""
        return isinstance(self.request, _STREAMABLE) and bool(self.request.stream)


class Upstream(Protocol):
    """One replica. Every kind of request goes through this one method, so that it is counted in one place."""

    async def serve(self, call: InferenceCall, sink: AnswerSink) -> None:
        """Answer the whole call into the sink; the end of the answer is the caller's to send.

        UpstreamFailed says what went wrong and whether another replica may try. Cancelling this stops the
        generation on the worker.
        """
        ...


class Upstreams(Protocol):
    """Connections to replicas, kept while they are in use."""

    def at(self, endpoint: ReplicaEndpoint) -> Upstream: ...
