"""Images, speech and sounds from a backend that speaks backend.proto. Its files are on its worker: what it
is to read is put there first, and what it has written is fetched (contract 4.2 and 4.4).
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from google.protobuf.message import DecodeError

from remuda.core.clock import Clock
from remuda.core.errors import Invalid
from remuda.inference.answers import AnswerSink, AudioSink, Transcript, TranscriptSegment, TranscriptWord
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.media_requests import (
    IMAGES_MAX,
    ImageRequest,
    InputFile,
    MediaRequest,
    SoundRequest,
    SpeechRequest,
    TranscriptionRequest,
)
from remuda.inference.model import InferenceCall
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc.channels import Channel, GrpcCall
from remuda.upstreams.http.request_files import FilesOnWorker, RequestFiles
from remuda.upstreams.http2.failures import CallFailed, GrpcStatus

IMAGE_BYTES_MAX: Final = 64 << 20  # Of one: all of a request are in memory together.
SAMPLE_RATE_MAX: Final = 1_000_000
_NANOSECONDS: Final = 1e9


@dataclass(frozen=True, slots=True)
class MediaCalls:
    """Of one backend. `draw` makes a seed."""

    channel: Channel
    files: RequestFiles
    clock: Clock
    silence_s: float
    whole_s: float
    draw: Callable[[], int]

    async def serve(self, call: InferenceCall, request: MediaRequest, sink: AnswerSink) -> None:
        """As inference.model.Upstream has it; raises CallFailed and DecodeError, too."""
        async with self.files.opened(call.files) as there:
            match request:
                case ImageRequest():
                    await self._images(call, request, there, sink)
                case TranscriptionRequest():
                    await self._transcribe(call, request, there, sink)
                case SpeechRequest():
                    await self._speak(call, request, there, sink.media().audio())
                case SoundRequest():
                    await self._sound(call, request, there, sink.media().audio())
                case other:
                    assert_never(other)

    async def _images(
        self, call: InferenceCall, request: ImageRequest, there: FilesOnWorker, sink: AnswerSink
    ) -> None:
        if not 1 <= request.count <= IMAGES_MAX:
            raise Invalid(f"n is {request.count}: 1 to {IMAGES_MAX} images are made at once", param="n")
        source = await _put(there, request.source)
        references = [await there.put(file) for file in request.references]
        first = request.seed if request.seed is not None else self.draw()
        images = list[bytes]()
        for number in range(request.count):
            output = await there.output()
            rpc_request = _image_request(call, request, output, source, references)
            rpc_request.seed = (first + number) & 0x7FFFFFFF
            await self._written("GenerateImage", call, rpc_request.SerializeToString())
            images.append(await there.whole(output, IMAGE_BYTES_MAX))
            self._note(call)
        await sink.media().images(images)

    async def _transcribe(
        self, call: InferenceCall, request: TranscriptionRequest, there: FilesOnWorker, sink: AnswerSink
    ) -> None:
        rpc_request = _transcript_request(call, request, await there.put(request.audio))
        media = sink.media()
        if request.stream:
            try:
                found = await self._transcribed_in_parts(call, rpc_request, media.transcribed)
            except CallFailed as failed:
                if failed.code is not GrpcStatus.UNIMPLEMENTED:
                    raise
            else:
                await media.transcript(found)
                return
        rpc_request.stream = False
        answer = await self._whole("AudioTranscription", rpc_request.SerializeToString())
        self._note(call)
        await media.transcript(_transcript(pb.TranscriptResult.FromString(answer)))

    async def _transcribed_in_parts(
        self, call: InferenceCall, rpc_request: pb.TranscriptRequest, write: Callable[[str], Awaitable[None]]
    ) -> Transcript:
        texts, result = list[str](), None
        stream = await self.channel.call("AudioTranscriptionStream", rpc_request.SerializeToString())
        with GrpcCall(stream, self.silence_s) as open_call:
            while (message := await open_call.read()) is not None:
                reply = pb.TranscriptStreamResponse.FromString(message)
                if reply.delta:
                    self._note(call)
                    texts.append(reply.delta)
                    await write(reply.delta)
                if reply.HasField("final_result"):
                    result = reply.final_result
        return Transcript("".join(texts)) if result is None else _transcript(result)

    async def _speak(
        self, call: InferenceCall, request: SpeechRequest, there: FilesOnWorker, sink: AudioSink
    ) -> None:
        voice = request.voice
        rpc_request = _speech_request(
            call, request, await there.put(voice) if isinstance(voice, InputFile) else voice
        )
        if request.stream:
            try:
                await self._spoken_in_parts(call, rpc_request, sink)
                return
            except CallFailed as failed:
                if failed.code is not GrpcStatus.UNIMPLEMENTED:
                    raise
        rpc_request.dst = output = await there.output()
        await self._written("TTS", call, rpc_request.SerializeToString())
        await self._pass_on(call, there, output, sink)

    async def _spoken_in_parts(
        self, call: InferenceCall, rpc_request: pb.TTSRequest, sink: AudioSink
    ) -> None:
        """The first reply tells the sample rate, each further one has samples."""
        begun = False
        with GrpcCall(
            await self.channel.call("TTSStream", rpc_request.SerializeToString()), self.silence_s
        ) as open_call:
            while (message := await open_call.read()) is not None:
                reply = pb.Reply.FromString(message)
                if not begun:
                    await sink.begin(_sample_rate(reply.message))
                    begun = True
                if reply.audio:
                    self._note(call)
                    await sink.write(reply.audio)
        if not begun:
            raise _nothing_written(call)
        await sink.end()

    async def _sound(
        self, call: InferenceCall, request: SoundRequest, there: FilesOnWorker, sink: AudioSink
    ) -> None:
        rpc_request = _sound_request(call, request, await _put(there, request.source))
        rpc_request.dst = output = await there.output()
        await self._written("SoundGeneration", call, rpc_request.SerializeToString())
        await self._pass_on(call, there, output, sink)

    async def _pass_on(self, call: InferenceCall, there: FilesOnWorker, output: str, sink: AudioSink) -> None:
        async def write(piece: bytes) -> None:
            if call.tally.first_token_s is None:  # Not before: until then another replica can take over.
                self._note(call)
                await sink.begin(0)
            await sink.write(piece)

        await there.fetch(output, write)
        await sink.end()

    async def _written(self, method: str, call: InferenceCall, request: bytes) -> None:
        """The backend has written its output."""
        result = pb.Result.FromString(await self._whole(method, request))
        if not result.success:
            words = result.message[:500] or "it does not say why"
            raise UpstreamFailed(Fault.FAILED, f"the backend of {call.model.id} failed: {words}")

    async def _whole(self, method: str, request: bytes) -> bytes:
        with GrpcCall(await self.channel.call(method, request), self.whole_s) as call:
            return await call.whole()

    def _note(self, call: InferenceCall) -> None:
        call.tally.token_came(self.clock.monotonic())


async def _put(there: FilesOnWorker, file: InputFile | None) -> str:
    return "" if file is None else await there.put(file)


def _image_request(
    call: InferenceCall, request: ImageRequest, output: str, source: str, references: Sequence[str]
) -> pb.GenerateImageRequest:
    return pb.GenerateImageRequest(
        width=request.width,
        height=request.height,
        step=request.steps,
        positive_prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        dst=output,
        src=source,
        ref_images=references,
        ModelIdentity=call.model.parameters.model,
    )


def _transcript_request(
    call: InferenceCall, request: TranscriptionRequest, audio: str
) -> pb.TranscriptRequest:
    return pb.TranscriptRequest(
        dst=audio,  # What is read, in spite of its name.
        language=request.language,
        threads=max(call.model.threads or 0, 0),
        translate=request.translate,
        diarize=request.diarize,
        prompt=request.prompt,
        temperature=request.temperature,
        timestamp_granularities=request.granularities,
        stream=request.stream,
        ModelIdentity=call.model.parameters.model,
    )


def _speech_request(call: InferenceCall, request: SpeechRequest, voice: str) -> pb.TTSRequest:
    rpc_request = pb.TTSRequest(
        text=request.text,
        model=call.model.parameters.model,
        voice=voice,
        params=request.parameters,
        ModelIdentity=call.model.parameters.model,
    )
    if request.language is not None:
        rpc_request.language = request.language
    if request.instructions is not None:
        rpc_request.instructions = request.instructions
    return rpc_request


def _sound_request(call: InferenceCall, request: SoundRequest, source: str) -> pb.SoundGenerationRequest:
    rpc_request = pb.SoundGenerationRequest(text=request.text, model=call.model.parameters.model)
    if request.duration_s is not None:
        rpc_request.duration = request.duration_s
    if request.temperature is not None:
        rpc_request.temperature = request.temperature
    if request.sample is not None:
        rpc_request.sample = request.sample
    if source:
        rpc_request.src = source
    return rpc_request


def _transcript(result: pb.TranscriptResult) -> Transcript:
    segments = [
        TranscriptSegment(
            segment.id,
            segment.start / _NANOSECONDS,
            segment.end / _NANOSECONDS,
            segment.text,
            list(segment.tokens),
            segment.speaker,
            [
                TranscriptWord(word.start / _NANOSECONDS, word.end / _NANOSECONDS, word.text)
                for word in segment.words
            ],
        )
        for segment in result.segments
    ]
    return Transcript(result.text, segments, result.language, result.duration)


def _sample_rate(message: bytes) -> int:
    try:
        decoded = json.loads(message)
    except ValueError:
        decoded = None
    rate = decoded.get("sample_rate") if isinstance(decoded, dict) else None
    if not isinstance(rate, int) or not 0 < rate <= SAMPLE_RATE_MAX:
        raise DecodeError("the first reply of a stream of speech has its sample rate")
    return rate


def _nothing_written(call: InferenceCall) -> UpstreamFailed:
    return UpstreamFailed(Fault.FAILED, f"the backend of {call.model.id} said nothing")
