"""Reads small files from folders that somebody else filled: an image may have put anything under any name."""

import os
import stat
from pathlib import Path

from remuda.core.errors import Invalid


def read_small(path: Path, bytes_max: int, *, within: Path | None = None) -> bytes:
    """All of a file. FileNotFoundError when there is none, other OSErrors as they come.

    Invalid for what is no plain file (a pipe would hold us, a device never ends), for one larger than
    `bytes_max`, and for a link that leads out of the folder `within`.
    """
    real = path.resolve(strict=True)
    if within is not None and not real.is_relative_to(within.resolve()):
        raise Invalid(f"{path} leads out of its folder", hint="put the file itself there, not a link")
    with os.fdopen(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as handle:
        if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
            raise Invalid(f"{path} is not a file")
        content = handle.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise Invalid(f"{path} is larger than {bytes_max} bytes")
    return content
