"""What tests of upstreams share."""

from collections.abc import AsyncIterator

import pytest
from anyio.lowlevel import checkpoint

_TURNS = 50


@pytest.fixture(scope="module")
async def one_loop() -> AsyncIterator[None]:
    """All tests of a module run in one event loop. gRPC's poller is one for the whole process, and has been
    seen to hand what was left of a test to a loop that was closed already."""
    yield
    for _ in range(_TURNS):
        await checkpoint()
