"""A backend as LocalAI's wire contract describes one: it repeats its prompts. It knows nothing of ours.

Recordings are texts to it: it reads files of requests, and writes what it read and was asked for.
"""

import argparse
import hmac
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import grpc

from tests.peers.backend_proto import TRANSPORT, build, service

_CALLS_AT_ONCE = 16


class ShellBackend:
    """One word of the prompt is one token."""

    def __init__(self) -> None:
        self._model = ""

    def health(self, request: Any, context: Any) -> Any:
        return build("Reply", message=b"OK")

    def load_model(self, options: Any, context: Any) -> Any:
        if not options.Model:
            return build("Result", success=False, message="no model was named")
        self._model = options.Model
        print(f"loading {self._model!r} from {options.ModelFile!r} in {options.ModelPath!r}", flush=True)
        return build("Result", success=True, message=f"{self._model} is loaded")

    def predict(self, options: Any, context: Any) -> Any:
        words = self._answer(options, context)
        return _reply(options, " ".join(words), len(words))

    def predict_stream(self, options: Any, context: Any) -> Iterator[Any]:
        for count, word in enumerate(self._answer(options, context), 1):
            yield _reply(options, word if count == 1 else f" {word}", count)

    def generate_image(self, request: Any, context: Any) -> Any:
        seen = [Path(path).read_text() for path in (request.src, *request.ref_images) if path]
        size = f"{request.width}x{request.height}"
        return _write(request.dst, f"{request.positive_prompt} {size} {request.seed} {' '.join(seen)}")

    def transcribe(self, request: Any, context: Any) -> Any:
        heard = Path(request.dst)
        print(f"transcribing {heard}", flush=True)
        words = heard.read_text().split()
        segments = [
            build("TranscriptSegment", id=number, start=number * 10**9, end=(number + 1) * 10**9, text=word)
            for number, word in enumerate(words)
        ]
        return build(
            "TranscriptResult",
            segments=segments,
            text=" ".join(words),
            language=request.language,
            duration=2.5,
        )

    def transcribe_stream(self, request: Any, context: Any) -> Iterator[Any]:
        whole = self.transcribe(request, context)
        for segment in whole.segments:
            yield build("TranscriptStreamResponse", delta=segment.text)
        yield build("TranscriptStreamResponse", final_result=whole)

    def speak(self, request: Any, context: Any) -> Any:
        if request.text == "nothing":
            return build("Result", success=True)
        if request.text == "fail":
            return build("Result", success=False, message="it has lost its voice")
        voice = Path(request.voice).read_text() if request.voice.startswith("/") else request.voice
        return _write(request.dst, f"{voice}: {request.text}")

    def speak_stream(self, request: Any, context: Any) -> Iterator[Any]:
        yield build("Reply", message=json.dumps({"sample_rate": 16000}).encode())
        for word in request.text.split():
            yield build("Reply", audio=word.encode())

    def make_sound(self, request: Any, context: Any) -> Any:
        heard = Path(request.src).read_text() if request.src else ""
        return _write(request.dst, f"{request.text} {heard}")

    def free(self, request: Any, context: Any) -> Any:
        self._model = ""
        return build("Result", success=True, message="nothing is loaded")

    def _answer(self, options: Any, context: Any) -> list[str]:
        if not self._model:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "model not loaded")
        if options.ModelIdentity and options.ModelIdentity != self._model:
            wrong = f"model identity mismatch: {self._model} is loaded, not {options.ModelIdentity}"
            context.abort(grpc.StatusCode.NOT_FOUND, wrong)
        words = _prompt(options).split()
        return words[: options.Tokens] if options.Tokens > 0 else words


class TokenCheck:
    """An interceptor: no call reaches the backend without the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def intercept_service(self, proceed: Callable[[Any], Any], call: Any) -> Any:
        given = dict(call.invocation_metadata).get("authorization", "")
        if hmac.compare_digest(given.encode(), self._expected):
            return proceed(call)
        return grpc.unary_unary_rpc_method_handler(_refuse)


def _refuse(request: bytes, context: Any) -> NoReturn:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "invalid token")
    raise AssertionError("an aborted call does not go on")


def _write(path: str, text: str) -> Any:
    Path(path).write_text(text)
    return build("Result", success=True)


def _prompt(options: Any) -> str:
    templated = options.UseTokenizerTemplate and options.Messages
    return str(options.Messages[-1].content if templated else options.Prompt)


def _reply(options: Any, text: str, tokens: int) -> Any:
    prompt_tokens = len(_prompt(options).split())
    return build("Reply", message=text.encode(), tokens=tokens, prompt_tokens=prompt_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--addr", default="localhost:50051")
    address = parser.parse_args().addr
    token = os.environ.get("LOCALAI_GRPC_AUTH_TOKEN", "")
    checks = [TokenCheck(token)] if token else []
    server = grpc.server(ThreadPoolExecutor(_CALLS_AT_ONCE), interceptors=checks, options=TRANSPORT)
    backend = ShellBackend()
    calls = {
        "Health": backend.health,
        "LoadModel": backend.load_model,
        "Predict": backend.predict,
        "PredictStream": backend.predict_stream,
        "Free": backend.free,
        "GenerateImage": backend.generate_image,
        "AudioTranscription": backend.transcribe,
        "AudioTranscriptionStream": backend.transcribe_stream,
        "TTS": backend.speak,
        "TTSStream": backend.speak_stream,
        "SoundGeneration": backend.make_sound,
    }
    server.add_generic_rpc_handlers((service(calls),))
    server.add_insecure_port(address)
    server.start()
    print(f"listening on {address}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
