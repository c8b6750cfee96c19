"""Streams of server-sent events, as OpenAI frames its answers. Pure."""

from typing import Final

from remuda.router.loading import LoadStatus

SSE: Final = b"text/event-stream"
JSON: Final = b"application/json"
SSE_HEADERS: Final = ((b"content-type", SSE), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
EVENT_START: Final = b"data: "
EVENT_END: Final = b"\n\n"
DONE: Final = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """`data` is JSON on one line."""
    return EVENT_START + data + EVENT_END


def last_event(data: bytes, written: bytes) -> bytes:
    """An event, and the end of the stream; whatever was `written` last is ended first."""
    cut_off = written and not written.endswith(EVENT_END)
    return (EVENT_END if cut_off else b"") + event(data) + DONE


def node_comment(node_name: str) -> bytes:
    """Tells whose answer it is, where the head was sent too early to say it."""
    return b": node %b\n\n" % node_name.encode()


def loading_comment(status: LoadStatus) -> bytes:
    where = f" on {status.node}" if status.node else ""
    words = f"{status.state} {status.model} {status.progress:.0f}%{where}"
    return f": {' '.join(words.split())}\n\n".encode()
