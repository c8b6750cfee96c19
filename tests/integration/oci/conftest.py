"""One registry per test process, and a client that does not wait long."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.core.retry import Backoff
from remuda.oci.blobs import BlobStore
from remuda.oci.client import RegistryClient, open_client
from remuda.oci.transport import RetryPolicy
from tests.support.registry import RegistryServer, registry_server

IMPATIENT = RetryPolicy(
    attempts_max=4,
    backoff=Backoff(first=timedelta(milliseconds=5), most=timedelta(milliseconds=20)),
)


@pytest.fixture(scope="session")
def registry_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="session")
def registry(registry_folder: Path) -> Iterator[RegistryServer]:
    with registry_server(registry_folder) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "store")


@pytest.fixture
async def client() -> AsyncIterator[RegistryClient]:
    async with open_client(SystemClock(), SeededEntropy(1), retry=IMPATIENT, idle_read_s=0.5) as opened:
        yield opened
