"""What a backend that speaks HTTP was last started with: a newer version of it is proven by the same start.

It outlives versions and workers; one that cannot be read counts as none. Blocks on the disk.
"""

import os
from pathlib import Path
from typing import Annotated

from remuda.core.errors import RemudaError
from remuda.wire.codec import OMIT_EMPTY, Many, Message, decode, encode
from remuda.worker.depot.metadata import FILE_BYTES_MAX, write_text


class LastStart(Message):
    """A model, as a frontend asked for it."""

    model_id: str
    model_path: Annotated[str, OMIT_EMPTY] = ""
    options: Annotated[Many[str], OMIT_EMPTY] = ()

    @property
    def possible(self) -> bool:
        """A model whose file is gone starts nothing. What is no path here is for the server to find."""
        return not os.path.isabs(self.model_path) or os.path.exists(self.model_path)


def read_last_start(path: Path) -> LastStart | None:
    try:
        with path.open("rb") as handle:
            return decode(LastStart, handle.read(FILE_BYTES_MAX + 1), bytes_max=FILE_BYTES_MAX)
    except (OSError, RemudaError):
        return None


def write_last_start(path: Path, start: LastStart) -> None:
    """Nothing is written where it says so already."""
    if read_last_start(path) == start:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, encode(start).decode())
