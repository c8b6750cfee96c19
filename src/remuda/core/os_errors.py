"""Operating-system errors in plain words. Pure."""

import errno
import os
import re
import socket
from typing import Final

_NUMBER: Final = re.compile(r"\[Errno (-?\d+)\]\s*")
_IN_PLAIN_WORDS: Final = {
    errno.ENOSPC: "its disk is full",
    errno.EDQUOT: "this user's disk quota is used up",
    errno.EROFS: "its file system is read-only",
}


def os_reason(error: OSError) -> str:
    """Without the error's number, and without the name of the call that failed."""
    if isinstance(error, socket.gaierror):
        return "its host name cannot be looked up"
    if isinstance(error, NotADirectoryError):
        return "a part of its path is not a folder"
    if isinstance(error, FileExistsError):
        return "there is a file of this name, which is not a folder"
    if error.errno is not None and error.errno > 0:
        return _IN_PLAIN_WORDS.get(error.errno) or os.strerror(error.errno)
    return str(error.strerror or error)


def is_full(error: OSError) -> bool:
    """Whether the disk has no room left, for anybody or for this user."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def without_number(text: str) -> str:
    """The words of a library that passes on an error of the system as text."""
    found = _NUMBER.search(text)
    if found is None:
        return text
    return "its host name cannot be looked up" if int(found[1]) < 0 else _NUMBER.sub("", text)
