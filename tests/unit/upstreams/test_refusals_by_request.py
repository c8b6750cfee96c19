"""What a request did wrong is told as such, however the backend puts it."""

import msgspec
import pytest

from remuda.inference.failures import Fault
from remuda.inference.model import RequestKind
from remuda.inference.requests import ChatRequest
from remuda.upstreams.grpc.error_mapping import failure_of, field_not_followed
from remuda.upstreams.http.refusals import failure
from remuda.upstreams.http2.failures import CallFailed, GrpcStatus

OVERFLOW = "the request exceeds the available context size, try increasing it"
IMAGE = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"


@pytest.mark.parametrize("code", [GrpcStatus.INVALID_ARGUMENT, GrpcStatus.INTERNAL, GrpcStatus.UNKNOWN])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (OVERFLOW, "context_length_exceeded"),
        ("request (9000 tokens) exceeds the available context size (4096 tokens)", "context_length_exceeded"),
        ("Context size has been exceeded.", "context_length_exceeded"),
        (IMAGE, "unsupported_input"),
        ("audio input is not supported", "unsupported_input"),
    ],
)
def test_grpc_backends_are_understood(code: GrpcStatus, words: str, told: str) -> None:
    failed = failure_of(CallFailed(code, words), "m", RequestKind.CHAT, begun=False)
    assert (failed.code, failed.status, failed.fault) == (told, 400, Fault.REFUSED)
    assert failed.param == "messages"


PARSE = "Failed to initialize samplers: failed to parse grammar"
SCHEMA = (
    "Unable to generate parser for this template: JSON schema error at #/$defs/0: unrecognized type strin"
)
TOOLS: list[object] = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("words", "changes", "field"),
    [
        (PARSE, {"grammar": "root ::= foo"}, "grammar"),
        (PARSE, {"response_format": {"type": "json_object"}}, "response_format"),
        (PARSE, {"grammar": "root ::= foo", "response_format": {"type": "text"}}, "grammar"),
        (PARSE, {"tools": TOOLS}, "tools"),
        (SCHEMA, {"tools": TOOLS, "grammar": "root ::= foo"}, "tools"),
        (PARSE, {}, ""),
        ("out of paper", {"grammar": "root ::= foo"}, ""),
    ],
)
def test_field_that_an_engine_could_not_follow_is_found(
    words: str, changes: dict[str, object], field: str
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | changes
    request = msgspec.convert(body, ChatRequest)
    assert field_not_followed(CallFailed(GrpcStatus.INVALID_ARGUMENT, words), request) == field


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (400, b'{"error": {"message": "%b", "type": "exceed_context_size_error"}}' % OVERFLOW.encode(), True),
        (400, b'{"message": "This model\'s maximum context length is 4096 tokens."}', True),
        (500, b'{"error": {"message": "%b", "code": 500}}' % IMAGE.encode(), False),
    ],
)
def test_http_backends_are_understood(status: int, body: bytes, told: bool) -> None:
    failed = failure(status, b"", body)
    assert failed is not None
    expected = "context_length_exceeded" if told else "unsupported_input"
    assert (failed.code, failed.status) == (expected, 400)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "request (20031 tokens) exceeds the available context size (8192 tokens), try increasing it",
            "20031 tokens do not fit the context of 8192",
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
            "5000 tokens do not fit the context of 4096",
        ),
        (IMAGE, "smollm2 does not take images: that needs a model with a vision projector (an mmproj file)"),
        (
            "audio input is not supported",
            "smollm2 does not take audio: that needs a model with an audio projector (an mmproj file)",
        ),
        ("m.gguf is not a multimodal model", "smollm2 takes text only; other input"),
    ],
)
def test_clients_are_told_in_few_words(words: str, told: str) -> None:
    failed = failure_of(
        CallFailed(GrpcStatus.INVALID_ARGUMENT, words), "smollm2", RequestKind.CHAT, begun=False
    )
    assert failed.public_text.startswith(told)
    advice = "; send fewer, or: remuda models add FILE.gguf --context TOKENS"
    assert failed.public_text.endswith(advice) is told[0].isdigit()


def test_a_kind_of_request_that_a_model_does_not_do_is_named() -> None:
    unable = CallFailed(GrpcStatus.UNIMPLEMENTED, "set `embeddings: true`")
    failed = failure_of(unable, "smollm2", RequestKind.EMBEDDING, begun=False)
    assert (failed.code, failed.status) == ("unsupported_request", 400)
    assert failed.public_text == "smollm2 does not do embeddings: set `embeddings: true`"
    missing = CallFailed(GrpcStatus.UNIMPLEMENTED, "Method not found!")
    for translates, asked in ((False, "transcriptions"), (True, "translations")):
        failed = failure_of(missing, "m", RequestKind.TRANSCRIPTION, begun=False, translates=translates)
        assert failed.public_text == f"m does not do {asked}"


def test_other_failures_stay_what_they_are() -> None:
    failed = CallFailed(GrpcStatus.INTERNAL, "out of paper")
    assert failure_of(failed, "m", RequestKind.CHAT, begun=False).status == 502
    assert failure(400, b"", b'{"error": {"message": "bad"}}') is None
