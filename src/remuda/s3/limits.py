"""Bounds of object storage, named with their units."""

from datetime import timedelta
from typing import Final

from remuda.core.retry import Backoff

PART_BYTES: Final = 16 << 20  # Asked for in one request.
SENT_PART_BYTES: Final = 16 << 20
SENT_AT_ONCE_MAX: Final = 2  # Parts of a file; each is held in memory.
SENT_PARTS_MAX: Final = 10_000  # Of one object, as Amazon has it.
ANSWER_BYTES_MAX: Final = 4 << 20  # A list of a thousand parts is a quarter of that.
STREAM_BYTES: Final = 256 << 10  # What has come of so many when a stream breaks off is lost.
SMOOTH_STREAM_BYTES: Final = 1 << 20  # The same of one that has not broken off so far: that is quicker.
SMOOTH_FROM_BYTES: Final = 64 << 20  # Of what is left; below it so large a piece is too much to lose.
SILENCE_S: Final = 60.0  # A stream that brings nothing for so long has broken off.
DIAGNOSIS_S: Final = 15.0  # For the one request that asks what is wrong.
LISTED_MAX: Final = 10_000
READ_BYTES: Final = 1 << 20
COPIED_BYTES_MAX: Final = 5 << 30  # By one request within the storage, as Amazon has it.
AT_ONCE_BYTES_MAX: Final = 1 << 30  # Of an object that is sent in one request.
PARTS_AT_ONCE_MAX: Final = 4
PART: Final = timedelta(minutes=2)  # Patience with one part.
CONNECT: Final = timedelta(seconds=10)
RETRY: Final = timedelta(seconds=30)  # The library's own, of one request.
RETRIES_MAX: Final = 3
ATTEMPTS_MAX: Final = 4  # At one part that broke off.
BACKOFF: Final = Backoff(first=timedelta(seconds=1), most=timedelta(seconds=10))
ERROR_CHARS_MAX: Final = 300
