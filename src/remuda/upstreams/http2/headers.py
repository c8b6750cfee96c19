"""Blocks of headers (HPACK, RFC 7541): ours are constants, the server's mostly are. Pure."""

from collections.abc import Iterable
from typing import Final

from hpack import Decoder, HPACKError
from hpack.hpack import encode_integer

from remuda.upstreams.http2 import limits
from remuda.upstreams.http2.failures import Headers
from remuda.upstreams.http2.frames import Code, Violation

# The one size that needs no agreement; said each time, for blocks are to mean the same on any connection.
_NO_TABLE: Final = b"\x20"
_POST: Final = b"\x83"
_SCHEME_HTTP: Final = b"\x86"
_NOT_INDEXED: Final = b"\x00"
_NEVER_INDEXED: Final = b"\x10"


def request_block(path: str, authority: str, token: str = "") -> bytes:
    """The headers of every call of one method at one backend."""
    said = (
        (b":path", path),
        (b":authority", authority),
        (b"te", "trailers"),
        (b"content-type", "application/grpc"),
        (b"user-agent", "remuda"),
        (b"grpc-accept-encoding", "identity"),
    )
    block = _NO_TABLE + _POST + _SCHEME_HTTP
    block += b"".join(_literal(_NOT_INDEXED, name, value) for name, value in said)
    return block + _literal(_NEVER_INDEXED, b"authorization", f"Bearer {token}") if token else block


class HeaderReader:
    """Reads the server's blocks. Most are like one before, and known by sight: as long as the table that
    blocks may refer to is empty, equal blocks mean the same."""

    def __init__(self) -> None:
        self._decoder = Decoder(limits.HEADERS_BYTES_MAX)
        self._known: dict[bytes, Headers] = {}

    def read(self, block: bytes) -> Headers:
        known = self._known.get(block)
        if known is not None:
            return known
        table = self._decoder.header_table
        before = table.maxsize, len(table.dynamic_entries)
        headers = dict(self._decoded(block))
        if (
            before != (table.maxsize, 0)
            or table.dynamic_entries
            or len(self._known) == limits.BLOCKS_KNOWN_MAX
        ):
            self._known.clear()
        else:
            self._known[block] = headers
        return headers

    def _decoded(self, block: bytes) -> Iterable[tuple[bytes, bytes]]:
        try:
            return self._decoder.decode(block, raw=True)
        except HPACKError as error:
            raise Violation(Code.COMPRESSION_ERROR, "headers that cannot be read") from error


def _literal(how: bytes, name: bytes, value: str) -> bytes:
    data = value.encode()
    return b"".join((how, encode_integer(len(name), 7), name, encode_integer(len(data), 7), data))
