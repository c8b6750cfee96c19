"""A backend for speech as LocalAI's wire contract describes one: faster-whisper hears, Piper speaks. It knows
nothing of ours. A model that is a folder is whisper's; one that is an .onnx file is a voice."""

import argparse
import json
import os
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from tests.peers.backend_proto import TRANSPORT, build, service
from tests.peers.shell_backend.server import TokenCheck

_NANOSECONDS = 10**9


class SpeechBackend:
    def __init__(self) -> None:
        self._whisper: Any = None
        self._voice: Any = None

    def health(self, request: Any, context: Any) -> Any:
        return build("Reply", message=b"OK")

    def load_model(self, options: Any, context: Any) -> Any:
        path = Path(options.ModelFile or Path(options.ModelPath) / options.Model)
        print(f"loading {path}", flush=True)
        if path.is_dir():
            from faster_whisper import WhisperModel  # type: ignore[import-not-found]

            self._whisper = WhisperModel(str(path), device="cpu", compute_type="int8", cpu_threads=1)
        elif path.suffix == ".onnx":
            from piper import PiperVoice  # type: ignore[import-not-found]

            self._voice = PiperVoice.load(str(path))
        else:
            return build("Result", success=False, message=f"{path} is neither a folder nor a voice")
        return build("Result", success=True, message="loaded")

    def transcribe(self, request: Any, context: Any) -> Any:
        if self._whisper is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "this model does not hear")
        found, info = self._whisper.transcribe(
            request.dst,
            language=request.language or None,
            task="translate" if request.translate else "transcribe",
            beam_size=1,
        )
        segments = [
            build(
                "TranscriptSegment",
                id=number,
                start=int(one.start * _NANOSECONDS),
                end=int(one.end * _NANOSECONDS),
                text=one.text,
            )
            for number, one in enumerate(found)
        ]
        text = "".join(one.text for one in segments).strip()
        whole = {"segments": segments, "text": text, "language": info.language, "duration": info.duration}
        return build("TranscriptResult", **whole)

    def speak(self, request: Any, context: Any) -> Any:
        if self._voice is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "this model does not speak")
        with wave.open(request.dst, "wb") as file:
            self._voice.synthesize_wav(request.text, file)
        return build("Result", success=True)

    def speak_stream(self, request: Any, context: Any) -> Iterator[Any]:
        if self._voice is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "this model does not speak")
        for number, chunk in enumerate(self._voice.synthesize(request.text)):
            if number == 0:
                yield build("Reply", message=json.dumps({"sample_rate": chunk.sample_rate}).encode())
            yield build("Reply", audio=chunk.audio_int16_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--addr", default="localhost:50051")
    address = parser.parse_args().addr
    token = os.environ.get("LOCALAI_GRPC_AUTH_TOKEN", "")
    checks = [TokenCheck(token)] if token else []
    server = grpc.server(ThreadPoolExecutor(4), interceptors=checks, options=TRANSPORT)
    backend = SpeechBackend()
    calls = {
        "Health": backend.health,
        "LoadModel": backend.load_model,
        "AudioTranscription": backend.transcribe,
        "TTS": backend.speak,
        "TTSStream": backend.speak_stream,
    }
    server.add_generic_rpc_handlers((service(calls),))
    server.add_insecure_port(address)
    server.start()
    print(f"listening on {address}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
