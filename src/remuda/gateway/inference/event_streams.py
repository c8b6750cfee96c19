"""Answers as server-sent events, and what all APIs that stream them so have in common. Pure."""

from typing import Final

from remuda.router.loading import LoadStatus

SSE: Final = b"text/event-stream"
SSE_HEADERS: Final = ((b"content-type", SSE), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
EVENT_START: Final = b"data: "
EVENT_END: Final = b"\n\n"


def ended(written: bytes) -> bytes:
    """What ends the event that was `written` last, if it was cut off."""
    return EVENT_END if written and not written.endswith(EVENT_END) else b""


class EventStreamFormat:
    """The part of gateway.client_response.ApiFormat that does not depend on the API."""

    stream_headers: Final = SSE_HEADERS
    request_id_headers: tuple[bytes, ...] = (b"x-request-id",)

    def is_stream(self, content_type: bytes) -> bool:
        return content_type.startswith(SSE)

    def node_comment(self, node_name: str) -> bytes:
        return b": node %b\n\n" % node_name.encode()

    def loading_comment(self, status: LoadStatus) -> bytes:
        return f": {' '.join(_loading_words(status).split())}\n\n".encode()


def _loading_words(status: LoadStatus) -> str:
    """What is being done for a request that waits. How far a backend is with its model is not known."""
    if status.waits_for:
        return f"waiting for {status.model}: {status.waits_for}"
    where = f" on {status.node}" if status.node else ""
    match status.state:
        case "pending":
            return f"preparing to load {status.model}{where}"
        case "installing":
            return f"installing the backend of {status.model}{where}: {status.progress:.0f}%"
        case "staging" if status.bytes_sent:
            return f"copying {status.model} to {status.node}: {status.progress:.0f}%"
        case "staging":
            return f"checking the files of {status.model} for {status.node}"
    return f"{status.state} {status.model}{where}"
