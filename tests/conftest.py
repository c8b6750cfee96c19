"""What every test can rely on."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """The event loop of production."""
    return "asyncio", {"use_uvloop": True}
