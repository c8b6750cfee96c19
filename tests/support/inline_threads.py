"""Work for threads, done in place: for scenes on a loop whose clock jumps, and would not wait for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio.lowlevel
import pytest
from anyio._backends._asyncio import AsyncIOBackend  # Where every call of anyio.to_thread.run_sync arrives.

T = TypeVar("T")


async def _in_place(
    _: type[AsyncIOBackend], /, act: Callable[..., T], arguments: tuple[object, ...], **_how: object
) -> T:
    await anyio.lowlevel.checkpoint()  # Others have their turn before it, as they would with a thread.
    return act(*arguments)


@contextmanager
def threads_inline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncIOBackend, "run_sync_in_worker_thread", classmethod(_in_place))
        yield
