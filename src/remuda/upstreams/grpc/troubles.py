"""From the status a call ended with to what the client is told, and whether another replica may try. Pure."""

import re
from typing import Final

import grpc

from remuda.inference.failures import Fault, UpstreamFailed
from remuda.upstreams.grpc import limits

_REFUSED: Final = (Fault.REFUSED, 400, "refuses this")
_BROKE: Final = (Fault.BROKE, 502, "broke off")
_SHUT: Final = (Fault.UNREACHABLE, 502, "does not let this frontend in")
_BY_STATUS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: _REFUSED,
    grpc.StatusCode.OUT_OF_RANGE: _REFUSED,
    grpc.StatusCode.UNIMPLEMENTED: (Fault.REFUSED, 400, "cannot do this"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (Fault.FAILED, 429, "is out of resources"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (Fault.SILENT, 504, "ran out of time"),
    grpc.StatusCode.UNAUTHENTICATED: _SHUT,
    grpc.StatusCode.PERMISSION_DENIED: _SHUT,
    grpc.StatusCode.UNAVAILABLE: _BROKE,
    grpc.StatusCode.CANCELLED: _BROKE,
}
# Said by backends, and by gRPC itself on either side.
_NOT_LOADED: Final = "model not loaded"
_ANOTHER_MODEL: Final = "model identity mismatch"
_BROKEN_OFF: Final = re.compile("stream removed|rst_stream")
_GARBAGE: Final = "parsing http/2"
_TURNED_AWAY: Final = re.compile(r"connection refused|last error: .*(?:connection reset|socket closed)")
_TOO_LARGE: Final = re.compile(r"(?:sent|received) message larger than max \((\d+) vs\. (\d+)\)")
# What gRPC puts before the reason: clients have no use for it, and addresses are none of their business.
_TRANSPORT: Final = re.compile(
    r"failed to connect to all addresses; last error: "
    r"|\b(UNAVAILABLE|UNKNOWN|INTERNAL): "
    r"|\b(ipv4|ipv6|unix):\S+:? ?"
)


def failure_of(code: grpc.StatusCode, details: str, model: str, *, heard: bool) -> UpstreamFailed:
    """`heard`: it had said something before."""
    words, lower = words_of(details), details.lower()
    if _lost_its_model(code, lower):
        return UpstreamFailed(Fault.NOT_LOADED, f"the replica does not hold {model}: {words}", status=503)
    if _GARBAGE in lower:
        return undecodable(model)
    if code is grpc.StatusCode.UNAVAILABLE and not heard:
        return UpstreamFailed(Fault.UNREACHABLE, f"the backend of {model} cannot be reached: {words}")
    if too_large := _TOO_LARGE.search(lower):
        return _too_large(int(too_large[2]), model)
    usual = _BROKE if _BROKEN_OFF.search(lower) else (Fault.FAILED, 502, "failed")
    fault, status, verb = _BY_STATUS.get(code, usual)
    hint = "the frontend and its workers need the same gRPC token" if verb == _SHUT[2] else ""
    return UpstreamFailed(
        fault, f"the backend of {model} {verb}: {words or code.name}", status=status, hint=hint
    )


def _too_large(bytes_max: int, model: str) -> UpstreamFailed:
    """Either side says it in the same words; only by the bound is it known whose message it was."""
    if bytes_max == limits.RECEIVED_BYTES_MAX:
        message = f"the backend of {model} sent more than {bytes_max >> 20} MiB in one message"
        return UpstreamFailed(Fault.FAILED, message)
    message = f"the request is too large for the backend of {model}, which takes {bytes_max >> 20} MiB"
    return UpstreamFailed(Fault.REFUSED, message, status=413)


def turned_away(code: grpc.StatusCode, details: str) -> bool:
    """Whether nobody serves at the address: it was reached, and the connection refused or dropped at once.
    Names that are not resolved and ways that are down say nothing about who is there."""
    return code is grpc.StatusCode.UNAVAILABLE and _TURNED_AWAY.search(details.lower()) is not None


def words_of(details: str) -> str:
    """A backend's own words, as far as they can be told."""
    return _TRANSPORT.sub("", details)[: limits.WORDS_CHARS_MAX]


def broke(model: str, why: str) -> UpstreamFailed:
    return UpstreamFailed(Fault.BROKE, f"the backend of {model} broke off: {why}")


def undecodable(model: str) -> UpstreamFailed:
    return UpstreamFailed(Fault.BROKE, f"the backend of {model} answered what cannot be understood")


def silent(model: str, seconds: float) -> UpstreamFailed:
    return UpstreamFailed(Fault.SILENT, f"the backend of {model} said nothing for {seconds:g} s", status=504)


def _lost_its_model(code: grpc.StatusCode, lower: str) -> bool:
    """Of the wrong model both must be said, the status and the words: words alone may be a client's own."""
    if code is grpc.StatusCode.NOT_FOUND:
        return _ANOTHER_MODEL in lower
    return code is grpc.StatusCode.FAILED_PRECONDITION or _NOT_LOADED in lower
