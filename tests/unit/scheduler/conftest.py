"""Everything here that waits does so in virtual time."""

import pytest

from tests.support.virtual_loop import VirtualLoop


@pytest.fixture(scope="package")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": VirtualLoop}
