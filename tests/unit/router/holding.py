"""A request in flight, for as long as a test says."""

from collections.abc import Iterator
from contextlib import contextmanager

from remuda.router.ledger import Ledger
from remuda.router.table import Route


@contextmanager
def holding(ledger: Ledger, route: Route) -> Iterator[None]:
    ledger.begin(route)
    try:
        yield
    finally:
        ledger.end(route)
