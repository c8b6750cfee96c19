"""The forms of a database's URL. Imports no database library, so that a start can be refused at once."""

import re
from typing import Final

from remuda.core.errors import Misconfigured

ACCEPTED: Final = "sqlite:////absolute/path/file.db or postgresql://user:password@host:port/database"

_CREDENTIALS: Final = re.compile(r"(://[^:@/]*):.*@")
_PASSWORD_PARAMETER: Final = re.compile(r"(password=)[^&]*", re.IGNORECASE)
_KINDS: Final = frozenset({"sqlite", "postgres", "postgresql", "postgresql+psycopg"})


def mask_url(url: str) -> str:
    """The URL without its password. Of a malformed one rather too much is hidden than too little."""
    return _PASSWORD_PARAMETER.sub(r"\1***", _CREDENTIALS.sub(r"\1:***@", url))


def check_kind(url: str) -> None:
    """Misconfigured for a URL of no kind of database that we can use."""
    kind, separator, _ = url.partition("://")
    if not separator:
        raise refused(url, "cannot be read")
    if kind not in _KINDS:
        raise refused(url, "is of an unknown kind")


def refused(url: str, why: str) -> Misconfigured:
    return Misconfigured(f"the database URL {mask_url(url)} {why}", hint=f"use {ACCEPTED}")
