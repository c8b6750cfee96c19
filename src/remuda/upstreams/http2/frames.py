"""HTTP/2 frames (RFC 9113) and blocks of headers (HPACK, RFC 7541): how they are built, and found in what
arrives. Pure. Our headers are constants, and the server's mostly are.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from struct import Struct
from typing import Final

from hpack import Decoder, HPACKError
from hpack.hpack import encode_integer

from remuda.upstreams.http2 import limits

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
PAYLOAD_BYTES_MAX: Final = 16_384  # Unless the receiver allows more, which we do not.
PAYLOAD_BYTES_MAX_MAX: Final = (1 << 24) - 1
WINDOW_BYTES: Final = 65_535  # With which every stream and connection begins.
WINDOW_BYTES_MAX: Final = (1 << 31) - 1
STREAM_ID_MAX: Final = (1 << 31) - 1

Headers = Mapping[bytes, bytes]

_HEAD: Final = Struct("!HBBBI")
_U32: Final = Struct("!I")
_SETTING: Final = Struct("!HI")
_U32_PAIR: Final = Struct("!II")
_PRIORITY_BYTES: Final = 5
_PING_BYTES: Final = 8


class FrameType(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Code(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class SettingsParameter(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20


class Violation(Exception):
    """What came is no HTTP/2, and there is no going on."""

    def __init__(self, code: Code, words: str) -> None:
        super().__init__(words)
        self.code = code


# Kind, flags, stream and payload. The kind is not a `Kind`: there may be others.
Frame = tuple[int, int, int, bytes]


class Splitter:
    """Finds the frames in what arrives, wherever that was cut."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._wanted = HEAD_BYTES

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Those that are complete now. Must be asked for all of them. Violation when one is too large."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data = bytes(self._rest)
            self._rest.clear()
        position, size = 0, len(data)
        while size - position >= HEAD_BYTES:
            length, low, kind, flags, stream_id = _HEAD.unpack_from(data, position)
            length = length << 8 | low
            if length > PAYLOAD_BYTES_MAX:
                raise Violation(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            begin = position + HEAD_BYTES
            end = begin + length
            if end > size:
                self._wanted = end - position
                self._rest += data[position:]
                return
            yield kind, flags, stream_id & STREAM_ID_MAX, data[begin:end]
            position = end
        self._wanted = HEAD_BYTES
        self._rest += data[position:]


def frame(kind: FrameType, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return head(kind, flags, stream_id, len(payload)) + payload


def head(kind: FrameType, flags: int, stream_id: int, length: int) -> bytes:
    """What stands before a payload of that length."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def settings(values: Mapping[SettingsParameter, int]) -> bytes:
    return frame(FrameType.SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


SETTINGS_ACK: Final = frame(FrameType.SETTINGS, ACK, 0)


def headers(stream_id: int, block: bytes, payload_bytes_max: int) -> bytes:
    """In as many frames as it takes; a body is to follow."""
    if len(block) <= payload_bytes_max:
        return frame(FrameType.HEADERS, END_HEADERS, stream_id, block)
    pieces = [block[at : at + payload_bytes_max] for at in range(0, len(block), payload_bytes_max)]
    first, *between, last = pieces
    return b"".join(
        (
            frame(FrameType.HEADERS, 0, stream_id, first),
            *(frame(FrameType.CONTINUATION, 0, stream_id, piece) for piece in between),
            frame(FrameType.CONTINUATION, END_HEADERS, stream_id, last),
        )
    )


def whole_request(stream_id: int, block: bytes, body: bytes) -> bytes:
    """In two frames, as most are."""
    return b"".join(
        (
            head(FrameType.HEADERS, END_HEADERS, stream_id, len(block)),
            block,
            head(FrameType.DATA, END_STREAM, stream_id, len(body)),
            body,
        )
    )


def rst_stream(stream_id: int, code: Code) -> bytes:
    return frame(FrameType.RST_STREAM, 0, stream_id, _U32.pack(code))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, _U32.pack(increment))


def pong(payload: bytes) -> bytes:
    return frame(FrameType.PING, ACK, 0, payload)


def goaway(code: Code) -> bytes:
    """No stream of the server's has been seen: it opens none."""
    return frame(FrameType.GOAWAY, 0, 0, _U32_PAIR.pack(0, code))


def data_of(flags: int, payload: bytes) -> bytes:
    """Of a DATA frame, without its padding."""
    return _without_padding(payload) if flags & PADDED else payload


def fragment_of(flags: int, payload: bytes) -> bytes:
    """Of a HEADERS frame, the part that belongs to the block."""
    if flags & PADDED:
        payload = _without_padding(payload)
    if flags & HAS_PRIORITY:
        if len(payload) < _PRIORITY_BYTES:
            raise Violation(Code.FRAME_SIZE_ERROR, "truncated HEADERS frame")
        return payload[_PRIORITY_BYTES:]
    return payload


def settings_of(payload: bytes) -> dict[int, int]:
    """By name, which is not always a `Setting`; of one that is said twice, the last."""
    if len(payload) % _SETTING.size:
        raise Violation(Code.FRAME_SIZE_ERROR, "truncated SETTINGS frame")
    return dict(_SETTING.iter_unpack(payload))


def code_of(payload: bytes) -> int:
    """Of a RST_STREAM frame."""
    return _u32("a reset", payload)


def increment_of(payload: bytes) -> int:
    """Of a WINDOW_UPDATE frame."""
    return _u32("a window", payload) & WINDOW_BYTES_MAX


def ping_of(payload: bytes) -> bytes:
    if len(payload) != _PING_BYTES:
        raise Violation(Code.FRAME_SIZE_ERROR, f"a ping of {len(payload)} bytes")
    return payload


def parse_goaway(payload: bytes) -> tuple[int, int]:
    """Of a GOAWAY frame, the last stream that was looked at, and why the server goes."""
    if len(payload) < _U32_PAIR.size:
        raise Violation(Code.FRAME_SIZE_ERROR, "truncated GOAWAY frame")
    last_id, code = _U32_PAIR.unpack_from(payload)
    return last_id & STREAM_ID_MAX, code


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Violation(Code.PROTOCOL_ERROR, "padding exceeds payload")
    return payload[1 : len(payload) - payload[0]]


def _u32(what: str, payload: bytes) -> int:
    if len(payload) != _U32.size:
        raise Violation(Code.FRAME_SIZE_ERROR, f"{what} of {len(payload)} bytes")
    (value,) = _U32.unpack(payload)
    return int(value)


# The one size that needs no agreement; said each time, for blocks are to mean the same on any connection.
_NO_TABLE: Final = b"\x20"
_POST: Final = b"\x83"
_SCHEME_HTTP: Final = b"\x86"
_NOT_INDEXED: Final = b"\x00"
_NEVER_INDEXED: Final = b"\x10"


def request_block(path: str, authority: str, token: str = "") -> bytes:
    """The headers of every call of one method at one backend."""
    headers = (
        (b":path", path),
        (b":authority", authority),
        (b"te", "trailers"),
        (b"content-type", "application/grpc"),
        (b"user-agent", "remuda"),
        (b"grpc-accept-encoding", "identity"),
    )
    block = _NO_TABLE + _POST + _SCHEME_HTTP
    block += b"".join(_literal(_NOT_INDEXED, name, value) for name, value in headers)
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
            raise Violation(Code.COMPRESSION_ERROR, "malformed header block") from error


def _literal(how: bytes, name: bytes, value: str) -> bytes:
    data = value.encode()
    return b"".join((how, encode_integer(len(name), 7), name, encode_integer(len(data), 7), data))
