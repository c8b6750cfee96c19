"""Services beside the fleet, for tests that run no event loop of their own."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

from anyio.from_thread import start_blocking_portal

T = TypeVar("T")


@contextmanager
def served(service: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """The service runs in a thread of its own for as long as the block."""
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(service) as running:
        yield running
