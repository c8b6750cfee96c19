"""Operating-system errors in plain words. Pure."""

import errno
import os
import re
import socket
import ssl
from pathlib import Path
from typing import Final, NamedTuple

_NUMBER: Final = re.compile(r"\[Errno (-?\d+)\]\s*")
_IN_PLAIN_WORDS: Final = {
    errno.ENOSPC: "its disk is full",
    errno.EDQUOT: "this user's disk quota is used up",
    errno.EROFS: "its file system is read-only",
}
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_UNKNOWN_SIGNER: Final = frozenset({2, 18, 19, 20, 21})  # OpenSSL's X509_V_ERR_... of chains without our CA.
_NAME_MISMATCH: Final = frozenset({62, 64})
NOT_HTTP: Final = "it does not speak HTTP"


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
    return str(error.strerror or error) or _of_the_class(error)


def _of_the_class(error: OSError) -> str:
    """For errors without a text of their own, as asyncio raises them."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return "the connection was closed" if isinstance(error, ConnectionError) else type(error).__name__


class ConnectTrouble(NamedTuple):
    """Why there is no connection to a server, and what helps; empty: check its address, and that it runs."""

    why: str
    hint: str = ""


def connect_trouble(error: OSError, ca: Path | None) -> ConnectTrouble:
    """`ca` is the CA file that the certificate was checked against; None: those of this machine."""
    match error:
        case ConnectionRefusedError():
            return ConnectTrouble("connection refused: nothing listens there")
        case ssl.SSLCertVerificationError():
            return _certificate_trouble(error, ca)
        case ssl.SSLError() if any(part in str(error) for part in _NOT_TLS):
            return ConnectTrouble("it does not speak HTTPS", "try http://")
        case socket.gaierror():
            return ConnectTrouble("unknown host")
        case OSError(errno=int(number)) if number > 0 and not isinstance(error, ssl.SSLError):
            return ConnectTrouble(os.strerror(number))
        case _:
            return ConnectTrouble(without_number(str(error)) or _of_the_class(error))


def _certificate_trouble(error: ssl.SSLCertVerificationError, ca: Path | None) -> ConnectTrouble:
    if error.verify_code in _NAME_MISMATCH:
        trouble = "its certificate is for another host name or address"
        return ConnectTrouble(trouble, "use an address that is in the certificate")
    if error.verify_code not in _UNKNOWN_SIGNER:
        trouble = f"its certificate is not valid: {error.verify_message}"
        return ConnectTrouble(trouble, "replace the server's certificate, and check this machine's clock")
    trouble = f"its certificate was not signed by {ca}" if ca else "its certificate is not trusted here"
    return ConnectTrouble(trouble, "give the CA file that signed it with --ca")


def is_full(error: OSError) -> bool:
    """Whether the disk has no room left, for all users or for this one."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def without_number(text: str) -> str:
    """The words of a library that passes on an error of the system as text."""
    found = _NUMBER.search(text)
    if found is None:
        return text
    return "its host name cannot be looked up" if int(found[1]) < 0 else _NUMBER.sub("", text)
