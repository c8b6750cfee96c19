"""Which database a URL names. Pure: nothing is opened here, and no password leaves by an error text."""

import re
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from remuda.core.errors import Misconfigured

ACCEPTED = "sqlite:////absolute/path/file.db or postgresql://user:password@host:port/database"

_CREDENTIALS = re.compile(r"(://[^:@/]*):.*@")
_PASSWORD_PARAMETER = re.compile(r"(password=)[^&]*", re.IGNORECASE)
_POSTGRES_SCHEMES = frozenset({"postgres", "postgresql", "postgresql+psycopg"})


def mask_url(url: str) -> str:
    """The URL without its password. Of a malformed one rather too much is hidden than too little."""
    return _PASSWORD_PARAMETER.sub(r"\1***", _CREDENTIALS.sub(r"\1:***@", url))


def parse_url(url: str) -> Path | URL:
    """A file for SQLite, a URL with our driver for PostgreSQL; Misconfigured for anything else."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise _refused(url, "cannot be read") from None
    if parsed.drivername == "sqlite":
        return _sqlite_path(url, parsed)
    if parsed.drivername not in _POSTGRES_SCHEMES:
        raise _refused(url, "is of an unknown kind")
    if parsed.host and "@" in parsed.host:
        raise _refused(url, "has an @ in its password, which must be written as %40")
    return parsed.set(drivername="postgresql+psycopg")


def _sqlite_path(url: str, parsed: URL) -> Path:
    if parsed.host or parsed.query or not parsed.database or not Path(parsed.database).is_absolute():
        raise _refused(url, "does not name a file by its absolute path")
    return Path(parsed.database)


def _refused(url: str, why: str) -> Misconfigured:
    return Misconfigured(f"the database URL {mask_url(url)} {why}", hint=f"use {ACCEPTED}")
