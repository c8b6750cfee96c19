"""Where the data of a sparse file belongs: its map, in each of the four forms that GNU tar has written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from remuda.oci.tar_numbers import decimal, number
from remuda.oci.tar_stream import ByteStream
from remuda.oci.unpack_errors import Refusal
from remuda.oci.unpack_limits import UnpackLimits

BLOCK_BYTES = 512
HEADER_MAP = slice(386, 482)  # Four segments, in the header itself.
HEADER_MORE = 482  # Not zero: another block of segments follows.
HEADER_SIZE = slice(483, 495)
BLOCK_MAP = slice(0, 504)  # Twenty-one segments.
BLOCK_MORE = 504
FIELD_BYTES = 12


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of data, in the order in which it is stored. Between segments there are zeros."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SparseMap:
    segments: tuple[Segment, ...]
    size: int  # Of the file once unpacked.
    map_bytes: int = 0  # Stored in front of the data and counted with it.


def old_map(header: bytes, stream: ByteStream, limits: UnpackLimits) -> SparseMap:
    """The map of a type `S` entry: in its header, and in blocks of its own behind that."""
    values = list(_fields(header[HEADER_MAP]))
    more = header[HEADER_MORE]
    while more:
        block = stream.exactly(BLOCK_BYTES)
        values.extend(_fields(block[BLOCK_MAP]))
        _check_count(len(values) // 2, limits)
        more = block[BLOCK_MORE]
    return SparseMap(_segments(values), number(header[HEADER_SIZE], "real size"))


def pax_map(records: Mapping[bytes, bytes], stream: ByteStream, limits: UnpackLimits) -> SparseMap | None:
    """The map of a file whose pax header says that it is sparse; None for other files."""
    if records.get(b"GNU.sparse.major") == b"1":
        size = decimal(records.get(b"GNU.sparse.realsize", b""), "real size")
        values, map_bytes = _leading_map(stream, limits)
        return SparseMap(_segments(values), size, map_bytes)
    text = records.get(b"GNU.sparse.map")
    if text is None:
        return None
    size = decimal(records.get(b"GNU.sparse.size", b""), "real size")
    values = [decimal(field, "sparse map") for field in text.split(b",")] if text else []
    _check_count(len(values) // 2, limits)
    return SparseMap(_segments(values), size)


def check_map(sparse: SparseMap, data_bytes: int) -> None:
    """Segments follow each other, stay within the file, and account for all data."""
    end = 0
    for segment in sparse.segments:
        if segment.offset < end:
            raise Refusal("its sparse map overlaps itself")
        end = segment.offset + segment.size
    if end > sparse.size or sum(segment.size for segment in sparse.segments) != data_bytes:
        raise Refusal("its sparse map does not fit its size")


def _fields(raw: bytes) -> Iterator[int]:
    for at in range(0, len(raw), FIELD_BYTES):
        field = raw[at : at + FIELD_BYTES]
        if field[0] == 0 and at % (2 * FIELD_BYTES) == 0:  # The first unused pair ends the list.
            return
        yield number(field, "sparse map")


def _leading_map(stream: ByteStream, limits: UnpackLimits) -> tuple[list[int], int]:
    """Decimal lines in whole blocks before the data: how many segments, then offset and size of each."""
    text, wanted = b"", 1
    while (lines := text.count(b"\n")) < wanted:
        text += stream.exactly(BLOCK_BYTES)
        if len(text) > limits.metadata_bytes_max:
            raise Refusal(f"its sparse map is larger than {limits.metadata_bytes_max} bytes")
        if lines == 0 and b"\n" in text:
            count = decimal(text[: text.index(b"\n")], "sparse map")
            _check_count(count, limits)
            wanted = 1 + 2 * count
    values = [decimal(line, "sparse map") for line in text.split(b"\n")[1:wanted]]
    return values, len(text)


def _segments(values: list[int]) -> tuple[Segment, ...]:
    if len(values) % 2:
        raise Refusal("its sparse map breaks off")
    return tuple(Segment(*pair) for pair in zip(values[::2], values[1::2], strict=True))


def _check_count(count: int, limits: UnpackLimits) -> None:
    if count > limits.sparse_segments_max:
        raise Refusal(f"its sparse map has more than {limits.sparse_segments_max} parts")
