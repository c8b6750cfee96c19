"""A strict, streaming reader of tar archives: v7, ustar, pax and GNU, sparse files included.

It only ever reads forward, keeps one entry at a time, and refuses what it does not understand instead of
guessing or stopping early. It does not judge names: that is the unpacker's job.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from remuda.oci.layer_stream import ByteStream
from remuda.oci.unpack_rules import Refusal, UnpackLimits, shown

OCTAL = re.compile(rb"[ \0]*([0-7]*)[ \0]*\Z")
DECIMAL = re.compile(rb"[0-9]{1,19}\Z")
INSTANT = re.compile(rb"(-?)([0-9]{1,19})(?:\.([0-9]*))?\Z")

BASE_256 = 0x80
NEGATIVE = 0x40
SECOND_NS = 1_000_000_000
# What file systems keep without wrapping around: 1901 to 2446.
EARLIEST_NS = -(1 << 31) * SECOND_NS
LATEST_NS = ((1 << 34) - (1 << 31) - 1) * SECOND_NS


def number(field: bytes, what: str) -> int:
    """A header field of octal digits or, where those would not do, of base 256. Never negative."""
    value = signed_number(field, what)
    if value < 0:
        raise Refusal(f"its {what} is negative")
    return value


def signed_number(field: bytes, what: str) -> int:
    if field[0] & BASE_256:
        magnitude = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 2)) - 1)
        return magnitude - (1 << (8 * len(field) - 2)) if field[0] & NEGATIVE else magnitude
    match = OCTAL.match(field)
    if match is None:
        raise Refusal(f"its {what} is not a number")
    return int(match[1] or b"0", 8)


def decimal(text: bytes, what: str) -> int:
    """A pax value that must be a whole number."""
    if DECIMAL.match(text) is None:
        raise Refusal(f"its {what} is not a number")
    return int(text)


def instant_ns(text: bytes) -> int:
    """A pax time: seconds, perhaps with a fraction of any length."""
    match = INSTANT.match(text)
    if match is None:
        raise Refusal("its modification time is not a number")
    fraction = int((match[3] or b"").ljust(9, b"0")[:9])
    value = int(match[2]) * SECOND_NS + fraction
    return -value if match[1] else value


def clamped_ns(instant: int) -> int:
    """A time that every file system can keep."""
    return max(EARLIEST_NS, min(instant, LATEST_NS))


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


ZEROS = bytes(BLOCK_BYTES)
USTAR = b"ustar\0"
EXTENSIONS_MAX = 8  # Long names and pax headers in front of one entry; writers need three at most.
SPARSE_PIECE = (b"GNU.sparse.offset", b"GNU.sparse.numbytes")  # Repeated, in the oldest pax form.


class TarKind(Enum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"


KINDS = {
    b"0": TarKind.FILE,
    b"\0": TarKind.FILE,
    b"7": TarKind.FILE,  # Contiguous, where that ever meant something.
    b"S": TarKind.FILE,
    b"1": TarKind.HARDLINK,
    b"2": TarKind.SYMLINK,
    b"5": TarKind.DIRECTORY,
}
REFUSED = {b"3": "a character device", b"4": "a block device", b"6": "a fifo"}


@dataclass(frozen=True, slots=True)
class TarEntry:
    """One member of the archive. Names are as written, nothing about them was checked."""

    name: bytes
    kind: TarKind
    size: int  # Of the file once unpacked; 0 for other kinds.
    mode: int
    mtime_ns: int
    link: bytes = b""


@dataclass(slots=True)
class Extension:
    """What the headers in front of an entry say about it."""

    records: dict[bytes, bytes]
    name: bytes | None = None
    link: bytes | None = None


class TarReader:
    """Iterate for entries; `data` gives the current one's content, and what is not taken is skipped."""

    def __init__(self, stream: ByteStream, limits: UnpackLimits) -> None:
        self._stream = stream
        self._limits = limits
        self._segments: Iterator[Segment] = iter(())
        self._unread = 0  # Data of the current entry, padding included, still in the stream.
        self._name = b""
        self._between = True  # Reading headers: the entry's name is not known yet.

    def __iter__(self) -> Iterator[TarEntry]:
        """All entries. Reads on to the end of the stream after the last."""
        while (entry := self._next_entry()) is not None:
            yield entry
            self._stream.skip(self._unread)
            self._unread = 0
        self._stream.drain()

    def data(self) -> Iterator[tuple[int, memoryview]]:
        """The current entry's content as pieces, each with its position in the file, in ascending order."""
        for segment in self._segments:
            position = segment.offset
            for piece in self._stream.pieces(segment.size):
                self._unread -= len(piece)
                yield position, piece
                position += len(piece)

    def place(self) -> str:
        """Which entry is being read, for messages."""
        if not self._between:
            return shown(self._name)
        return f"what follows {shown(self._name)}" if self._name else "the start of the archive"

    def _next_entry(self) -> TarEntry | None:
        self._between = True
        extension = Extension({})
        for _ in range(EXTENSIONS_MAX + 1):
            header = self._stream.exactly(BLOCK_BYTES)
            if header == ZEROS:
                self._check_end(extension)
                return None
            _check_sum(header)
            flag = header[156:157]
            if flag in b"xXgLK":
                self._extend(extension, flag, header)
            else:
                return self._entry(header, flag, extension)
        raise Refusal(f"more than {EXTENSIONS_MAX} headers stand in front of one entry")

    def _check_end(self, extension: Extension) -> None:
        if extension != Extension({}):
            raise Refusal("the archive ends after a header that announces another entry")
        try:
            second = self._stream.exactly(BLOCK_BYTES)
        except EOFError:
            return  # One block of zeros is half an end mark, and common enough.
        if second != ZEROS:
            raise Refusal("the archive goes on after a block of zeros")

    def _extend(self, extension: Extension, flag: bytes, header: bytes) -> None:
        size = number(header[124:136], "size")
        if size > self._limits.metadata_bytes_max:
            raise Refusal(
                f"it has a header of {size} bytes; at most {self._limits.metadata_bytes_max} are allowed"
            )
        content = self._stream.exactly(size)
        self._stream.skip(-size % BLOCK_BYTES)
        if flag == b"L":
            extension.name = content.rstrip(b"\0")
        elif flag == b"K":
            extension.link = content.rstrip(b"\0")
        elif (
            flag != b"g"
        ):  # Global ones are comments in practice, and the tools that make images ignore them.
            extension.records.update(pax_records(content))

    def _entry(self, header: bytes, flag: bytes, extension: Extension) -> TarEntry:
        records = extension.records
        name = _name(header, extension)
        self._name, self._between = name, False
        if flag not in KINDS:
            raise Refusal(
                f"it is {REFUSED.get(flag, f'of an unknown type {flag!r}')}, which no backend needs"
            )
        kind = KINDS[flag]
        if (
            name.endswith(b"/") and kind is TarKind.FILE
        ):  # As directories were written before there was a type for them.
            kind = TarKind.DIRECTORY
        size = 0
        if kind is TarKind.FILE:
            size = self._file_size(header, flag, records)
        mtime = records.get(b"mtime")
        return TarEntry(
            name,
            kind,
            size,
            number(header[100:108], "mode"),
            clamped_ns(instant_ns(mtime) if mtime else signed_number(header[136:148], "time") * SECOND_NS),
            _text(records.get(b"linkpath") or extension.link, header[157:257]),
        )

    def _file_size(self, header: bytes, flag: bytes, records: dict[bytes, bytes]) -> int:
        """Sets up `data`, and returns how large the file will be."""
        stored = records.get(b"size")
        data_bytes = decimal(stored, "size") if stored else number(header[124:136], "size")
        self._unread = data_bytes + -data_bytes % BLOCK_BYTES
        if flag == b"S":
            sparse: SparseMap | None = old_map(header, self._stream, self._limits)
        else:
            sparse = pax_map(records, self._stream, self._limits)
        if sparse is None:
            self._segments = iter((Segment(0, data_bytes),))
            return data_bytes
        check_map(sparse, data_bytes - sparse.map_bytes)
        self._unread -= sparse.map_bytes
        self._segments = iter(sparse.segments)
        return sparse.size


def pax_records(content: bytes) -> dict[bytes, bytes]:
    """`length key=value` lines as a map. The oldest sparse maps, of repeated keys, take the next form."""
    records: dict[bytes, bytes] = {}
    pieces: list[bytes] = []
    at = 0
    while at < len(content):
        digits, space, _ = content[at : at + 20].partition(b" ")
        end = at + decimal(digits, "pax header")
        record = content[at + len(digits) + 1 : end]
        key, equals, value = record[:-1].partition(b"=")
        if not (space and equals and key) or end > len(content) or record[-1:] != b"\n":
            raise Refusal("its pax header is damaged")
        if key in SPARSE_PIECE:
            pieces.append(value)
        else:
            records[key] = value
        at = end
    if pieces:
        records[b"GNU.sparse.map"] = b",".join(pieces)
    return records


def _check_sum(header: bytes) -> None:
    try:
        given = number(header[148:156], "checksum")
    except Refusal:
        given = -1
    rest = header[:148] + b" " * 8 + header[156:]
    # Some old writers took bytes for signed.
    if given != sum(rest) and given != sum(rest) - 256 * sum(byte > 127 for byte in rest):
        raise Refusal("the header's checksum is wrong: this is no tar archive, or it is damaged")


def _name(header: bytes, extension: Extension) -> bytes:
    records = extension.records
    given = records.get(b"GNU.sparse.name") or records.get(b"path") or extension.name
    name = _text(given, header[:100])
    if given is None and header[257:263] == USTAR and header[345]:
        return header[345:500].partition(b"\0")[0] + b"/" + name
    return name


def _text(given: bytes | None, field: bytes) -> bytes:
    return given if given is not None else field.partition(b"\0")[0]
