"""Maps failures of calls to errors for the client, and says whether another replica may try. Pure."""

from typing import Final

from remuda.inference.failures import Fault, RequestUnsupported, UpstreamFailed, clients_fault
from remuda.inference.media_requests import MediaRequest
from remuda.inference.model import Request, RequestKind
from remuda.inference.requests import ChatRequest, CompletionRequest
from remuda.upstreams.grpc import limits
from remuda.upstreams.http2.failures import (
    BrokenOff,
    CallFailed,
    Garbled,
    GrpcStatus,
    Mute,
    ReplyTooLarge,
    RequestTooLarge,
    Silence,
    Unprocessed,
    Unreachable,
)

_REFUSED: Final = (Fault.REFUSED, 400, "refuses this")
_BROKE: Final = (Fault.BROKE, 502, "broke off")
_SHUT: Final = (Fault.UNREACHABLE, 502, "does not let this frontend in")
_BY_STATUS: Final = {
    GrpcStatus.INVALID_ARGUMENT: _REFUSED,
    GrpcStatus.OUT_OF_RANGE: _REFUSED,
    GrpcStatus.RESOURCE_EXHAUSTED: (Fault.FAILED, 429, "is out of resources"),
    GrpcStatus.DEADLINE_EXCEEDED: (Fault.SILENT, 504, "ran out of time"),
    GrpcStatus.UNAUTHENTICATED: _SHUT,
    GrpcStatus.PERMISSION_DENIED: _SHUT,
    GrpcStatus.UNAVAILABLE: _BROKE,
    GrpcStatus.CANCELLED: _BROKE,
}
# With these a backend may say that a request asks for too much.
_ANSWERED: Final = frozenset(
    {
        GrpcStatus.INVALID_ARGUMENT,
        GrpcStatus.OUT_OF_RANGE,
        GrpcStatus.INTERNAL,
        GrpcStatus.UNKNOWN,
        GrpcStatus.UNIMPLEMENTED,
        GrpcStatus.RESOURCE_EXHAUSTED,
    }
)
# Said by backends.
_DOES_NOT: Final = {
    RequestKind.CHAT: "chat",
    RequestKind.COMPLETION: "completions",
    RequestKind.EMBEDDING: "embeddings",
    RequestKind.RERANK: "reranking",
    RequestKind.TOKENIZE: "token counts",
    RequestKind.IMAGE: "images",
    RequestKind.TRANSCRIPTION: "transcriptions",
    RequestKind.SPEECH: "speech",
    RequestKind.SOUND: "sounds",
}
_TOLD_IN: Final = {  # The field that has what a model is to read, see or hear.
    RequestKind.CHAT: "messages",
    RequestKind.COMPLETION: "prompt",
    RequestKind.EMBEDDING: "input",
    RequestKind.RERANK: "documents",
    RequestKind.TOKENIZE: "",
    RequestKind.IMAGE: "prompt",
    RequestKind.TRANSCRIPTION: "file",
    RequestKind.SPEECH: "input",
    RequestKind.SOUND: "text",
}
_SCHEMA_WRONG: Final = "json schema error"
_NOT_FOLLOWED: Final = ("failed to parse grammar", "unable to generate parser", _SCHEMA_WRONG)  # llama.cpp's.
_METHOD_MISSING: Final = ("method not found", "method not implemented")  # The gRPC libraries' own words.
_NOT_LOADED: Final = "model not loaded"
_ANOTHER_MODEL: Final = "model identity mismatch"


def failure_of(
    failed: CallFailed, model: str, kind: RequestKind, *, begun: bool, translates: bool = False
) -> UpstreamFailed:
    """`begun`: the backend had said something before. `translates`: the words it heard, into English."""
    match failed:
        case Garbled():
            return undecodable(model)
        case Silence():
            message = f"the backend of {model} said nothing for {failed.seconds:g} s"
            return UpstreamFailed(Fault.SILENT, message, status=504)
        case ReplyTooLarge():
            message = f"the backend of {model} sent more than {failed.bytes_max >> 20} MiB in one message"
            return UpstreamFailed(Fault.FAILED, message)
        case RequestTooLarge():
            message = f"the request is too large for the backend of {model}, which takes"
            return UpstreamFailed(Fault.REFUSED, f"{message} {failed.bytes_max >> 20} MiB", status=413)
    words = words_of(failed)
    if _lost_its_model(failed):
        return UpstreamFailed(Fault.NOT_LOADED, f"the replica does not hold {model}: {words}", status=503)
    if failed.code is GrpcStatus.UNAVAILABLE and not begun:
        unsent = isinstance(failed, Unreachable | Unprocessed)
        message = f"the backend of {model} cannot be reached: {words}"
        return UpstreamFailed(Fault.UNREACHABLE, message, unsent=unsent, mute=isinstance(failed, Mute))
    own = clients_fault(words, model, f"the backend of {model} refuses this: {words}")
    if own is not None and failed.code in _ANSWERED:
        own.param = _TOLD_IN[kind]
        return own
    if failed.code is GrpcStatus.UNIMPLEMENTED:
        reason = "" if not words or words.lower().startswith(_METHOD_MISSING) else f": {words}"
        asked = "translations" if translates else _DOES_NOT[kind]
        return RequestUnsupported(f"{model} does not do {asked}{reason}")
    usual = _BROKE if isinstance(failed, BrokenOff) else (Fault.FAILED, 502, "failed")
    fault, status, verb = _BY_STATUS.get(failed.code, usual)
    hint = "the frontend and its workers need the same gRPC token" if verb == _SHUT[2] else ""
    return UpstreamFailed(
        fault, f"the backend of {model} {verb}: {words or failed.code.name}", status=status, hint=hint
    )


def field_not_followed(failed: CallFailed, request: Request | MediaRequest) -> str:
    """The field whose grammar or schema an engine could not make use of; empty: that is not why it failed."""
    words = failed.details.lower()
    if not isinstance(request, ChatRequest | CompletionRequest) or failed.code not in _ANSWERED:
        return ""
    if not any(phrase in words for phrase in _NOT_FOLLOWED):
        return ""
    if isinstance(request, CompletionRequest):
        return "grammar" if request.grammar else ""
    if request.tools and (not request.grammar or _SCHEMA_WRONG in words):
        return "tools"
    wanted = request.response_format
    if wanted is not None and wanted.type != "text":
        return "response_format"
    return "grammar" if request.grammar else ""


def words_of(failed: CallFailed) -> str:
    """A backend's own words, as far as they are text."""
    return failed.details[: limits.WORDS_CHARS_MAX]


def undecodable(model: str) -> UpstreamFailed:
    return UpstreamFailed(Fault.BROKE, f"the backend of {model} answered what cannot be understood")


def _lost_its_model(failed: CallFailed) -> bool:
    """Of the wrong model both must be said, the status and the words: words alone may be a client's own."""
    lower = failed.details.lower()
    if failed.code is GrpcStatus.NOT_FOUND:
        return _ANOTHER_MODEL in lower
    return failed.code is GrpcStatus.FAILED_PRECONDITION or _NOT_LOADED in lower
