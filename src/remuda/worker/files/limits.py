"""Bounds of file transfer, named with their units. There is no limit on how long bytes may take to arrive,
only on how long none does."""

from typing import Final

KEY_BYTES_MAX: Final = 2048
NAME_BYTES_MAX: Final = 240  # Of 255: the names of sidecars are longer than those of their files.
FOLDERS_DEEP_MAX: Final = 64
LINKS_MAX: Final = 40  # Followed on the way to one file.
DECODINGS_MAX: Final = 4

BODY_BYTES_MAX: Final = 50 << 30  # Of one request, as LocalAI's workers have it.
FILE_BYTES_MAX: Final = 4 << 40
UPLOADS_AT_ONCE_MAX: Final = 32  # Each may hold one of the 40 threads that all parts of a worker share.
DOWNLOADS_AT_ONCE_MAX: Final = 64
STALL_S: Final = 60.0  # A caller that neither sends nor takes a byte for so long is cut off.
TAKEOVER_S: Final = 30.0  # For an upload to let go of a file that a newer one continues.
WRITE_BYTES: Final = 1 << 20  # Gathered before they are handed to the disk, or for how long.
GATHER_S: Final = 0.02
READ_BYTES: Final = 1 << 20
HASHED_AT_ONCE_MAX: Final = 2  # Files: more only make the disk seek.
HASHES_KNOWN_MAX: Final = 4096
UNFINISHED_HASHES_MAX: Final = 64  # Of partial uploads, so that what is there need not be read again.
SIDECAR_BYTES_MAX: Final = 256
LISTED_FILES_MAX: Final = 20_000
TEMPORARY_FILES_MAX: Final = 10_000
EPHEMERAL_BYTES_MAX: Final = 32 << 30  # Inputs of requests, all together.

OBJECTS_AT_ONCE_MAX: Final = 8  # Brought from object storage or sent there.
OBJECT_READINGS_MAX: Final = 3  # Of one that is replaced while it is read.

SWEEP_EVERY_S: Final = 900.0
SWEPT_ENTRIES_MAX: Final = 200_000  # Looked at in one go.
PARTIAL_STALE_S: Final = 24 * 3600.0  # Untouched for so long: longer than any load waits for its files.
EPHEMERAL_STALE_S: Final = 24 * 3600.0  # Inputs and outputs of requests.
