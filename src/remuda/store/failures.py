"""What the database driver raises, in the project's own words. Values of statements never get into them."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from remuda.core.errors import Invalid, StoreUnusable

_REASON_CHARS_MAX = 300


def unusable(database: str, reason: str) -> StoreUnusable:
    return StoreUnusable(
        f"the database {database} cannot be used: {reason}",
        hint="check that it runs, that it can be reached from here and that its disk has room",
    )


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
        raise unusable(database, _reason(error)) from error
    except PoolExhausted as error:
        raise unusable(database, "all connections to it are busy") from error


def _reason(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())[:_REASON_CHARS_MAX]
