"""The fastest reader of gzip data that is installed: ISA-L's where there is a wheel of it, else zlib's."""

import zlib
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

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
