"""What has changed between two looks, by the bytes of each entity, and how it is written. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic_core import to_json

from remuda.wire.codec import encode
from remuda.wire.console import ConsoleTrouble

Rendered = Mapping[str, Mapping[str, bytes]]
"""By collection and id: each entity as JSON."""

NOTHING_CHANGED: Final = b"{}"
KEEP_ALIVE: Final = b": keep-alive\n\n"
WELL: Final = b"event: well\ndata: {}\n\n"


def snapshot(rendered: Rendered) -> bytes:
    """Everything, as JSON."""
    return b"{%b}" % b",".join(
        b'"%b":[%b]' % (name.encode(), b",".join(entities.values())) for name, entities in rendered.items()
    )


def difference(before: Rendered, after: Rendered) -> bytes:
    """As JSON; empty: nothing has changed."""
    changed = b",".join(_changed(before, after))
    return b"{%b}" % changed if changed else b""


def _changed(before: Rendered, after: Rendered) -> Iterator[bytes]:
    for name, entities in after.items():
        known = before.get(name, {})
        if entities is known:
            continue
        written = [body for id, body in entities.items() if known.get(id) != body]
        gone = [to_json(id) for id in known if id not in entities]
        parts = [b'"set":[%b]' % b",".join(written)] if written else []
        parts += [b'"gone":[%b]' % b",".join(gone)] if gone else []
        if parts:
            yield b'"%b":{%b}' % (name.encode(), b",".join(parts))


def event(name: str, id: str, data: bytes) -> bytes:
    """One event of the stream; JSON holds no line breaks."""
    return b"event: %b\nid: %b\ndata: %b\n\n" % (name.encode(), id.encode(), data)


def trouble(code: str, message: str) -> bytes:
    return b"event: trouble\ndata: %b\n\n" % encode(ConsoleTrouble(code=code, message=message))
