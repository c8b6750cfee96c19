"""From the status a call ended with to what the client is told, and whether another replica may try. Pure."""

from typing import Final

import grpc

from remuda.inference.failures import Fault, UpstreamFailed
from remuda.upstreams.grpc import limits

_NOT_LOADED: Final = "model not loaded"
_OTHER_MODEL: Final = "model identity mismatch"
_TOO_LARGE_FOR_US: Final = "received message larger than max"
_TOO_LARGE_TO_SEND: Final = "sent message larger than max"
_NOT_ITS_OWN_WORDS: Final = ("stream removed", "rst_stream", "http/2", "http2", "protocol error")


def failure_of(code: grpc.StatusCode, details: str, model: str, *, heard: bool) -> UpstreamFailed:
    """`heard`: it had said something before."""
    words, lower = details[: limits.WORDS_CHARS_MAX], details.lower()
    if code is grpc.StatusCode.FAILED_PRECONDITION or _NOT_LOADED in lower or _OTHER_MODEL in lower:
        return UpstreamFailed(Fault.NOT_LOADED, f"the replica does not hold {model}: {words}", status=503)
    match code:
        case grpc.StatusCode.UNAVAILABLE if not heard:
            return UpstreamFailed(Fault.UNREACHABLE, f"the backend of {model} cannot be reached: {words}")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return broke(model, words)
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return UpstreamFailed(
                Fault.UNREACHABLE,
                f"the backend of {model} does not let this frontend in: {words}",
                hint="frontend and worker need the same gRPC token",
            )
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.OUT_OF_RANGE:
            return UpstreamFailed(Fault.REFUSED, f"the backend of {model} refuses this: {words}", status=400)
        case grpc.StatusCode.UNIMPLEMENTED:
            return UpstreamFailed(
                Fault.REFUSED, f"the backend of {model} cannot do this: {words}", status=400
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return _exhausted(words, lower, model)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return UpstreamFailed(
                Fault.SILENT, f"the backend of {model} ran out of time: {words}", status=504
            )
        case grpc.StatusCode.INTERNAL | grpc.StatusCode.UNKNOWN if any(
            sign in lower for sign in _NOT_ITS_OWN_WORDS
        ):
            return broke(model, words)
    return UpstreamFailed(Fault.FAILED, f"the backend of {model} failed: {words or code.name}")


def broke(model: str, why: str) -> UpstreamFailed:
    return UpstreamFailed(Fault.BROKE, f"the backend of {model} broke off: {why}")


def undecodable(model: str) -> UpstreamFailed:
    return UpstreamFailed(Fault.BROKE, f"the backend of {model} answered what cannot be understood")


def silent(model: str, seconds: float) -> UpstreamFailed:
    return UpstreamFailed(Fault.SILENT, f"the backend of {model} said nothing for {seconds:g} s", status=504)


def _exhausted(words: str, lower: str, model: str) -> UpstreamFailed:
    if _TOO_LARGE_TO_SEND in lower:
        return UpstreamFailed(
            Fault.REFUSED,
            f"this is too large for the backend of {model}: {limits.MESSAGE_BYTES_MAX >> 20} MiB at most",
            status=413,
        )
    if _TOO_LARGE_FOR_US in lower:
        return UpstreamFailed(
            Fault.FAILED,
            f"the backend of {model} sent more than {limits.MESSAGE_BYTES_MAX >> 20} MiB in one message",
        )
    return UpstreamFailed(Fault.FAILED, f"the backend of {model} is out of resources: {words}", status=429)
