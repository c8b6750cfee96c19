"""Bounds of pushing files, named with their units. What moves bytes is never cut off."""

from datetime import timedelta
from typing import Final

from remuda.core.retry import Backoff

CONNECT_S: Final = 10.0
STALL_S: Final = 60.0  # Of one request: a worker that takes no byte for so long.
ANSWER_S: Final = 60.0  # For an answer; a worker that must read a file for it gets more.
ANSWER_S_PER_GIB: Final = 20.0
WITHOUT_PROGRESS_S: Final = 300.0  # A push that gets no further for so long is given up.
BACKOFF: Final = Backoff(first=timedelta(seconds=1), most=timedelta(seconds=30), jitter=0.2)
READ_BYTES: Final = 1 << 20
ANSWER_BYTES_MAX: Final = 64 << 10
WORDS_CHARS_MAX: Final = 300
CONNECTIONS_MAX: Final = 64
