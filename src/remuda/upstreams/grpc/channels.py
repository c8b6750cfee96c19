"""Connections to backends, and the calls of backend.proto that can be made over them: bounded in silence,
and ended when their block ends, whatever ended it.

Each method is either inference, which is counted as in flight, or process management. What is not listed
cannot be called: a new method in the service has to be put on one side first.
"""

from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Final, Self

import anyio

from remuda.inference.model import RequestKind
from remuda.upstreams.http2 import limits
from remuda.upstreams.http2.connection import Http2Connection, dial
from remuda.upstreams.http2.failures import (
    CallFailed,
    Garbled,
    GrpcStatus,
    HungUp,
    RequestTooLarge,
    Silence,
    Unprocessed,
)
from remuda.upstreams.http2.frames import request_block
from remuda.upstreams.http2.stream import Http2Stream, prefixed

SERVICE: Final = "backend.Backend"

INFERENCE: Final = frozenset(
    {
        "Predict",
        "PredictStream",
        "Embedding",
        "Rerank",
        "TokenizeString",
        "Detokenize",
        "TokenClassify",
        "Score",
        "GenerateImage",
        "UpscaleImage",
        "GenerateVideo",
        "Generate3D",
        "AudioTranscription",
        "AudioTranscriptionStream",
        "AudioTranscriptionLive",
        "TTS",
        "TTSStream",
        "SoundGeneration",
        "SoundDetection",
        "VAD",
        "Diarize",
        "AudioEncode",
        "AudioDecode",
        "AudioTransform",
        "AudioTransformStream",
        "AudioToAudioStream",
        "Detect",
        "Depth",
        "FaceVerify",
        "FaceAnalyze",
        "VoiceVerify",
        "VoiceAnalyze",
        "VoiceEmbed",
        "StoresSet",
        "StoresDelete",
        "StoresGet",
        "StoresFind",
        "Forward",
    }
)

_JOB = "starts or steers a job that outlives the call"
CONTROL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Health": "asks whether the process answers",
        "Status": "asks what the process is doing",
        "GetMetrics": "reads figures",
        "LoadModel": "comes before there is a replica",
        "Free": "comes after the last request",
        "ModelMetadata": "asks what the model can do",
        "StartFineTune": _JOB,
        "StopFineTune": _JOB,
        "FineTuneProgress": "watches a job",
        "ListCheckpoints": "reads a list of files",
        "ExportModel": _JOB,
        "StartQuantization": _JOB,
        "StopQuantization": _JOB,
        "QuantizationProgress": "watches a job",
    }
)

BY_KIND: Final[Mapping[RequestKind, frozenset[str]]] = MappingProxyType(
    {
        RequestKind.CHAT: frozenset({"Predict", "PredictStream"}),
        RequestKind.COMPLETION: frozenset({"Predict", "PredictStream"}),
        RequestKind.EMBEDDING: frozenset({"Embedding"}),
        RequestKind.RERANK: frozenset({"Rerank"}),
        RequestKind.TOKENIZE: frozenset({"TokenizeString"}),
        RequestKind.IMAGE: frozenset({"GenerateImage"}),
        RequestKind.TRANSCRIPTION: frozenset({"AudioTranscription", "AudioTranscriptionStream"}),
        RequestKind.SPEECH: frozenset({"TTS", "TTSStream"}),
        RequestKind.SOUND: frozenset({"SoundGeneration"}),
    }
)


def method_path(method: str) -> str:
    """What the call is called on the wire."""
    assert method in INFERENCE or method in CONTROL, f"{method} is on neither side"
    return f"/{SERVICE}/{method}"


class _Attempt:
    """To connect; all callers wait for the same one, and shares its failure."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.failure: CallFailed | None = None


class Channel:
    """One backend's. It connects when it is first used, and again when it has to; where a connection takes
    only so many calls at once, it has several. Messages go in and come out as bytes."""

    def __init__(self, address: str, token: str = "") -> None:
        self._address = address
        self._token = token
        self._blocks: dict[str, bytes] = {}
        self._connections: list[Http2Connection] = []
        self._attempt: _Attempt | None = None
        self._closed = False

    async def call(self, method: str, *request: bytes | memoryview) -> Http2Stream:
        """Begin a call, to be read and given up by the caller. CallFailed when that cannot be.

        The request may come in pieces, which are put together once.
        """
        if sum(map(len, request)) > limits.SENT_BYTES_MAX:
            raise RequestTooLarge(limits.SENT_BYTES_MAX)
        block = self._blocks.get(method)
        if block is None:
            block = request_block(method_path(method), self._address, self._token)
            self._blocks[method] = block
        connection = self._with_room() or await self._connected()
        return connection.call(block, prefixed(*request))

    @property
    def heard_s(self) -> float:
        """When anything came over connections that are open, by the loop's clock."""
        return max((one.heard_s for one in self._connections), default=float("-inf"))

    def close(self) -> None:
        """Calls still open end."""
        self._closed = True
        for connection in self._connections:
            connection.close()

    def _with_room(self) -> Http2Connection | None:
        for connection in self._connections:
            if connection.has_room:
                return connection
        return None

    async def _connected(self) -> Http2Connection:
        while (connection := self._with_room()) is None:
            attempt = self._attempt
            if attempt is None:
                await self._connect()
                continue
            await attempt.over.wait()
            if attempt.failure is not None:
                raise attempt.failure
        return connection

    async def _connect(self) -> None:
        """One at a time. If it is not waited for any longer, the next who needs one begins anew."""
        self._connections = [connection for connection in self._connections if not connection.closed]
        if len(self._connections) >= limits.CONNECTIONS_MAX:
            raise CallFailed(GrpcStatus.RESOURCE_EXHAUSTED, "it takes no more calls at once")
        attempt = self._attempt = _Attempt()
        try:
            self._connections.append(await self._dialled())
        except CallFailed as failure:
            attempt.failure = failure
            raise
        finally:
            self._attempt = None
            attempt.over.set()

    async def _dialled(self) -> Http2Connection:
        connection = await dial(self._address)
        if self._closed or not connection.has_room:
            connection.close()
            raise HungUp if self._closed else Unprocessed("it takes no calls now")
        return connection


class GrpcCall:
    """A call that has begun. The one watch over its silence costs no token anything. `read`: the next message
    of a stream; None at its end."""

    def __init__(self, stream: Http2Stream, silence_s: float) -> None:
        self.read = stream.read
        self._stream = stream
        self._silence_s = silence_s
        self._detached = False
        self._loop = stream.loop
        self._watch = self._loop.call_later(silence_s, self._look)

    def __enter__(self) -> Self:
        return self

    def detached(self) -> Http2Stream:
        """The call itself, for the caller to read and to give up."""
        self._detached = True
        return self._stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        if not self._detached:
            self._stream.close()

    async def whole(self) -> bytes:
        """The one message that a call is answered with."""
        message = await self.read()
        if message is None or await self.read() is not None:
            raise Garbled("there is not one message in the answer")
        return message

    def _look(self) -> None:
        left_s = self._stream.waiting_since_s + self._silence_s - self._loop.time()
        if left_s <= 0:
            self._stream.give_up(Silence(self._silence_s))
        else:
            self._watch = self._loop.call_later(min(left_s, self._silence_s), self._look)
