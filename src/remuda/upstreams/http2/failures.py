"""How a call can fail: what the backend says itself, and what becomes of the connection. Pure."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final
from urllib.parse import unquote_to_bytes

from remuda.upstreams.http2 import limits
from remuda.upstreams.http2.frames import Code, Headers


class GrpcStatus(IntEnum):
    """gRPC's."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallFailed(Exception):
    """The backend says so, unless the class tells of something else. `metadata` came with its status."""

    def __init__(self, code: GrpcStatus, details: str, metadata: Headers | None = None) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details
        self.metadata = metadata or {}


class Unreachable(CallFailed):
    """There is no connection, and there was none."""

    def __init__(self, details: str) -> None:
        super().__init__(GrpcStatus.UNAVAILABLE, details)


class BackendTurnedAway(Unreachable):
    """Nothing listens at the address: it was reached, and refused the connection or dropped it at once."""


class Mute(Unreachable):
    """It took the connection and said nothing: the kernel does that for a process that stands still."""


class Unprocessed(CallFailed):
    """The backend has not begun with the call, and will not."""

    def __init__(self, details: str) -> None:
        super().__init__(GrpcStatus.UNAVAILABLE, details)


class BrokenOff(CallFailed):
    """The answer ended without saying how it went."""


class Vanished(BrokenOff):
    """The machine at the other end of an open connection does not acknowledge anything any more."""

    def __init__(self) -> None:
        super().__init__(GrpcStatus.UNAVAILABLE, "its machine does not answer any more")


class Garbled(CallFailed):
    """What came cannot be understood."""

    def __init__(self, details: str) -> None:
        super().__init__(GrpcStatus.INTERNAL, details)


class HungUp(CallFailed):
    """The connection was closed on our side."""

    def __init__(self) -> None:
        super().__init__(GrpcStatus.CANCELLED, "its connection was closed")


class Silence(CallFailed):
    """The backend said nothing for `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(GrpcStatus.DEADLINE_EXCEEDED, f"nothing was said for {seconds:g} s")
        self.seconds = seconds


class RequestTooLarge(CallFailed):
    def __init__(self, bytes_max: int) -> None:
        super().__init__(GrpcStatus.RESOURCE_EXHAUSTED, f"the request has more than {bytes_max} bytes")
        self.bytes_max = bytes_max


class ReplyTooLarge(CallFailed):
    def __init__(self, bytes_max: int) -> None:
        super().__init__(GrpcStatus.RESOURCE_EXHAUSTED, f"a reply has more than {bytes_max} bytes")
        self.bytes_max = bytes_max


_BY_NUMBER: Final = {b"%d" % status: status for status in GrpcStatus}
_BY_HTTP_STATUS: Final = {
    b"400": GrpcStatus.INTERNAL,
    b"401": GrpcStatus.UNAUTHENTICATED,
    b"403": GrpcStatus.PERMISSION_DENIED,
    b"404": GrpcStatus.UNIMPLEMENTED,
    b"429": GrpcStatus.UNAVAILABLE,
    b"502": GrpcStatus.UNAVAILABLE,
    b"503": GrpcStatus.UNAVAILABLE,
    b"504": GrpcStatus.UNAVAILABLE,
}
_CODES: Final[Mapping[int, str]] = {code.value: code.name for code in Code}
_BY_CODE: Final[Mapping[int, GrpcStatus]] = {
    Code.CANCEL: GrpcStatus.CANCELLED,
    Code.ENHANCE_YOUR_CALM: GrpcStatus.RESOURCE_EXHAUSTED,
    Code.INADEQUATE_SECURITY: GrpcStatus.PERMISSION_DENIED,
}
_OK: Final = b"200"
_GRPC: Final = b"application/grpc"


def informational(headers: Headers) -> bool:
    """Whether the answer is still to come."""
    return headers.get(b":status", b"").startswith(b"1")


def refusal(headers: Headers) -> CallFailed | None:
    """What the head of an answer says against it."""
    status = headers.get(b":status", b"")
    if status != _OK:
        word = status.decode("ascii", "replace")[:9] or "nothing"
        return CallFailed(
            _BY_HTTP_STATUS.get(status, GrpcStatus.UNKNOWN), f"it answered with HTTP status {word}"
        )
    if not headers.get(b"content-type", b"").startswith(_GRPC):
        return Garbled("the answer is not gRPC's")
    return None


def verdict(trailers: Headers, *, alone: bool) -> CallFailed | None:
    """How the call went. `alone`: they are all there is of the answer."""
    number = trailers.get(b"grpc-status")
    if number is None:
        return (refusal(trailers) if alone else None) or unsaid()
    status = _BY_NUMBER.get(number, GrpcStatus.UNKNOWN)
    if status is GrpcStatus.OK:
        return None
    message = trailers.get(b"grpc-message", b"")
    words = unquote_to_bytes(message[: 3 * limits.WORDS_CHARS_MAX]).decode("utf-8", "replace")
    return CallFailed(status, words[: limits.WORDS_CHARS_MAX], trailers)


def unsaid() -> BrokenOff:
    """The answer ended, and its trailers are missing or say nothing."""
    return BrokenOff(GrpcStatus.INTERNAL, "it ended without a status")


def reset(code: int) -> CallFailed:
    """The backend has reset the call's stream."""
    if code == Code.REFUSED_STREAM:
        return Unprocessed("it does not take more calls at once")
    name = _CODES.get(code, f"code {code}")
    return BrokenOff(_BY_CODE.get(code, GrpcStatus.INTERNAL), f"it reset the call: {name}")
