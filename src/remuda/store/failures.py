"""Errors of the database driver, converted to ours. Values of statements never get into them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from remuda.core.errors import Invalid, StoreUnusable

_REASON_CHARS_MAX: Final = 300
_IN_PLAIN_WORDS: Final = (
    ("connection refused|could not connect|is the server running", "it refuses connections"),
    ("password|authentication|pg_hba|role .* does not exist|permission denied", "it refuses our login"),
    ("translate host name|name or service not known|resolve", "the name of its host is not known"),
    ("disk is full|no space left|quota", "its disk is full"),
    ("read-?only", "it takes no changes: it is read-only"),
    ("is locked", "another program holds it locked"),
    ("disk i/o error", "its disk fails"),
    ("unable to open", "its file cannot be opened"),
    ("malformed|not a database", "its file is damaged"),
    ("too many (?:clients|connections)|remaining connection slots", "it has too many connections"),
    ("starting up|shutting down|in recovery", "it is starting or stopping"),
    ("time-?out|timed out", "no answer in time"),
    ("database .* does not exist", "there is no such database on its server"),
    ("closed|terminat|lost|reset|broken pipe|eof", "the connection to it was lost"),
)


def unusable(database: str, reason: str, public_reason: str = "") -> StoreUnusable:
    """`public_reason` stands in for a `reason` in the words of a driver, which name hosts and users."""
    return StoreUnusable(
        f"the database {database} cannot be used: {reason}",
        hint="check that it runs, that it can be reached from here and that its disk has room",
        public=f"the database cannot be used: {public_reason or reason}",
    )


def plain_reason(driver_text: str) -> str:
    """What a driver says, without its words."""
    found = (words for sign, words in _IN_PLAIN_WORDS if re.search(sign, driver_text, re.IGNORECASE))
    return next(found, "the frontend's log says why")


@contextmanager
def translated(database: str) -> Iterator[None]:
    """Raise StoreUnusable for a database in trouble and Invalid for a value that no column can hold.

    Violated constraints pass as they are: only the caller knows what they mean.
    """
    try:
        yield
    except IntegrityError:
        raise
    except (DataError, UnicodeEncodeError, OverflowError) as error:
        raise Invalid("a text or number in it cannot be stored") from error
    except DBAPIError as error:
        reason = _reason(error)
        raise unusable(database, reason, plain_reason(reason)) from error
    except PoolExhausted as error:
        raise unusable(database, "all connections to it are busy") from error


def _reason(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())[:_REASON_CHARS_MAX]
