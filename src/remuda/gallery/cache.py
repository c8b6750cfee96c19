"""The last good copy of each index, on disk, so that galleries answer offline. Readable by its owner only."""

import hashlib
from pathlib import Path
from typing import Annotated, Final

import structlog

from remuda.core.errors import RemudaError
from remuda.gallery.fetch import Validators
from remuda.gallery.index import LIMITS
from remuda.host.folder import write_private
from remuda.wire.codec import OMIT_EMPTY, Message, Timestamp, decode, encode

log = structlog.get_logger()

# JSON writes one byte of YAML as up to six.
_FILE_BYTES_MAX: Final = 6 * LIMITS.bytes + 4096


class Copy(Message):
    """An index as it was last seen. One file holds it all, so that text and validators cannot part."""

    source: str  # The address that supplied it: the gallery's own, or a mirror.
    etag: Annotated[str, OMIT_EMPTY] = ""
    last_modified: Annotated[str, OMIT_EMPTY] = ""
    confirmed_at: Timestamp
    content: str

    @property
    def validators(self) -> Validators:
        return Validators(self.etag, self.last_modified)


class Cache:
    """Blocking: call it from a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, url: str) -> Copy | None:
        """The copy for this address. One that cannot be read counts as none: it can be fetched again."""
        path = self._path(url)
        try:
            with path.open("rb") as handle:
                return decode(Copy, handle.read(_FILE_BYTES_MAX + 1), bytes_max=_FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        except (OSError, RemudaError) as error:
            log.warning("gallery_copy_unreadable", path=str(path), error=str(error))
            return None

    def write(self, url: str, copy: Copy) -> None:
        """A copy that cannot be kept costs the next fetch, not this answer."""
        path = self._path(url)
        try:
            write_private(path, encode(copy).decode())
        except OSError as error:
            log.warning("gallery_copy_not_kept", path=str(path), error=str(error))

    def _path(self, url: str) -> Path:
        return self._folder / f"{hashlib.sha256(url.encode()).hexdigest()}.json"
