"""Real services for the suites that hold an adapter to its contract."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests of this worker; whoever kills or freezes one starts a server of its own."""
    with postgres_server() as server:
        yield server
