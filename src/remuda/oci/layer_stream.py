"""A layer's bytes, unpacked as they are asked for: plain, gzip or zstd, recognised by their first bytes.

Holds a few hundred kilobytes at a time whatever the layer's size, and counts what it unpacks against the
limits. Gzip is read by ISA-L where there is a wheel of it, else by zlib.
"""

import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import IO, Final, Generic, Protocol, TypeVar, cast

import zstandard

from remuda.oci.unpack_rules import Refusal, UnpackLimits

_GZIP: Final = 31  # Window bits: a gzip header and checksum are expected.


class Member(Protocol):
    """Reads one member of a gzip file, as `zlib.decompressobj` does."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...
    def flush(self) -> bytes: ...


def _fastest() -> tuple[Callable[[], Member], type[Exception]]:
    try:
        from isal import isal_zlib
    except ImportError:
        return partial(zlib.decompressobj, wbits=_GZIP), zlib.error
    damaged = cast(type[Exception], isal_zlib.IsalError)  # Its stubs have it for an instance.
    return partial(isal_zlib.decompressobj, wbits=_GZIP), damaged


new_member, Damaged = _fastest()
"""Makes a reader of one member, and what it raises for data that is none."""


T = TypeVar("T")


class _End(Generic[T]):
    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure


def read_ahead(items: Iterator[T], ahead: int) -> Generator[T]:
    """The same items, made in a thread of their own, at most `ahead` of them before they are asked for.

    What the items raise is raised here. A caller that stops early closes this generator, which returns when
    that thread has ended: after the item it is at.
    """
    made: SimpleQueue[T | _End[T]] = SimpleQueue()
    free = Semaphore(ahead)
    stopped = False

    def make() -> None:
        failure: Exception | None = None
        try:
            for item in items:
                made.put(item)
                free.acquire()
                if stopped:
                    return
        except Exception as error:  # Raised again where the item is read.
            failure = error
        made.put(_End(failure))

    maker = Thread(target=make, name="read-ahead", daemon=True)
    maker.start()
    try:
        while not isinstance(item := made.get(), _End):
            yield item
            free.release()
        if item.failure is not None:
            raise item.failure
    finally:
        stopped = True
        free.release()
        maker.join()


PACKED_BYTES = 128 << 10  # Read from the layer at a time.
CHUNK_BYTES = 256 << 10  # Unpacked at a time, at most.
CHUNKS_AHEAD = 8  # Unpacked while the disk is busy.
MAGIC_BYTES = 4

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE = b"\x2a\x4d\x18"  # After a first byte of 0x50 to 0x5f.
REFUSED = {
    b"BZh": "bzip2",
    b"\xfd7z": "xz",
    b"PK\x03": "zip",
    b"Rar": "rar",
    b"7z\xbc": "7z",
    b"\x04\x22\x4d": "lz4",
}


class Readable(Protocol):
    """An open file, or what can be read like one: no bytes mean its end."""

    def read(self, size: int, /) -> bytes: ...


class PackedBytes:
    """The layer as stored, and how much of it was taken."""

    def __init__(self, layer: Readable) -> None:
        self._layer = layer
        self._ahead = b""
        self.taken = 0

    def peek(self) -> bytes:
        """The first bytes, left in place. Fewer only if there are no more."""
        while len(self._ahead) < MAGIC_BYTES and (more := self._layer.read(PACKED_BYTES)):
            self._ahead += more
        return self._ahead[:MAGIC_BYTES]

    def read(self, size: int = PACKED_BYTES) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead[:size], self._ahead[size:]
        else:
            data = self._layer.read(size)
        self.taken += len(data)
        return data


def watched_chunks(
    layer: Readable,
    limits: UnpackLimits,
    on_bytes: Callable[[int], None],
    check_cancelled: Callable[[], None],
) -> Generator[bytes]:
    """`unpacked_chunks`, made in another thread. This one hears of bytes taken, and can be cancelled."""
    packed = PackedBytes(layer)
    reported = 0
    with closing(read_ahead(unpacked_chunks(packed, limits), CHUNKS_AHEAD)) as chunks:
        for chunk in chunks:
            check_cancelled()
            taken = packed.taken
            on_bytes(taken - reported)
            reported = taken
            yield chunk
    on_bytes(packed.taken - reported)


def unpacked_chunks(packed: PackedBytes, limits: UnpackLimits) -> Iterator[bytes]:
    """The layer's content in bounded chunks. Refuses unknown packing, damage, and more than is allowed."""
    total = 0
    for chunk in _chunks(packed, limits):
        total += len(chunk)
        if (
            total > 2 * limits.bytes_max
        ):  # Files are counted one by one; this is about what lies between them.
            raise Refusal(f"the layer unpacks to {total} bytes and still goes on")
        if total > max(limits.ratio_free_bytes, packed.taken * limits.ratio_max):
            raise Refusal(
                f"{packed.taken} bytes of the layer unpack to {total}, which only a decompression bomb does"
            )
        yield chunk


def _chunks(packed: PackedBytes, limits: UnpackLimits) -> Iterator[bytes]:
    magic = packed.peek()
    if magic.startswith(GZIP):
        return _gzip_chunks(packed)
    if magic == ZSTD or magic[1:] == ZSTD_SKIPPABLE:
        return _zstd_chunks(packed, limits.zstd_window_bytes_max)
    if packing := REFUSED.get(magic[:3]):
        raise Refusal(f"the layer is packed with {packing}; only gzip, zstd and plain tar are read")
    return iter(packed.read, b"")


def _gzip_chunks(packed: PackedBytes) -> Iterator[bytes]:
    member = new_member()
    data = packed.read()
    while data:
        try:
            chunk = member.decompress(data, CHUNK_BYTES)
        except Damaged as error:
            raise Refusal(f"the layer's gzip data is damaged: {error}") from error
        if chunk:
            yield chunk
        if not member.eof:
            data = member.unconsumed_tail or packed.read()
            continue
        data = member.unused_data.lstrip(b"\0")  # Tapes and some tools pad with zeros.
        while not data and (more := packed.read()):
            data = more.lstrip(b"\0")
        if data and not GZIP.startswith(data[: len(GZIP)]):
            raise Refusal("the layer's gzip data is damaged: something else follows it")
        if data:
            member = new_member()
    if not member.eof and (rest := member.flush()):  # A full chunk can leave a few bytes behind.
        yield rest
    if not member.eof:
        raise Refusal("the layer's gzip data breaks off")


def _zstd_chunks(packed: PackedBytes, window_bytes_max: int) -> Iterator[bytes]:
    # Data that breaks off shows as a tar archive without its end: this reader does not tell.
    decompressor = zstandard.ZstdDecompressor(max_window_size=window_bytes_max)
    source = cast(IO[bytes], packed)  # It is only asked to read.
    with decompressor.stream_reader(source, read_size=PACKED_BYTES, read_across_frames=True) as reader:
        while True:
            try:
                chunk = reader.read(CHUNK_BYTES)
            except zstandard.ZstdError as error:
                raise Refusal(
                    f"the layer's zstd data is damaged or needs too much memory: {error}"
                ) from error
            if not chunk:
                return
            yield chunk


class ByteStream:
    """Chunks as a stream to read from by size. `EOFError` where it ends too early."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._chunk = memoryview(b"")

    def pieces(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes, in pieces as they come."""
        while size:
            if not self._chunk:
                self._advance()
            piece = self._chunk[:size]
            self._chunk = self._chunk[size:]
            size -= len(piece)
            yield piece

    def exactly(self, size: int) -> bytes:
        if len(self._chunk) >= size:  # Nearly always, for headers and small files.
            data = bytes(self._chunk[:size])
            self._chunk = self._chunk[size:]
            return data
        return b"".join(self.pieces(size))

    def skip(self, size: int) -> None:
        for _ in self.pieces(size):
            pass

    def drain(self) -> None:
        """Read to the end: checksums stand there, and the feeding side is not left waiting."""
        for _ in self._chunks:
            pass

    def _advance(self) -> None:
        self._chunk = memoryview(next(self._chunks, b""))
        if not self._chunk:
            raise EOFError
