"""A request in flight, for as long as a test says."""

from collections.abc import Iterator
from contextlib import contextmanager

from remuda.router.table import Route
from remuda.router.usage import RequestLedger


@contextmanager
def holding(ledger: RequestLedger, route: Route) -> Iterator[None]:
    ledger.begin(route)
    try:
        yield
    finally:
        ledger.end(route)
