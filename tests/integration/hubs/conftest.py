"""A hub of the tests' own, and a client that does not wait long."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.core.retry import Backoff
from remuda.hubs.credentials import CredentialsFile
from remuda.hubs.hubs import HubAccess, Hubs, open_hubs
from remuda.oci.blobs import BlobStore
from remuda.oci.transport import RetryPolicy
from tests.support.hub import HubServer, hub_server
from tests.support.registry import RegistryServer, registry_server

IMPATIENT = RetryPolicy(
    attempts_max=4,
    backoff=Backoff(first=timedelta(milliseconds=5), most=timedelta(milliseconds=20)),
    retry_after_max=timedelta(seconds=1),
)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "store")


@pytest.fixture
async def hub() -> AsyncIterator[HubServer]:
    async with hub_server() as server:
        yield server


@pytest.fixture
def env(tmp_path: Path, hub: HubServer) -> dict[str, str]:
    """The environment of the frontend; tests add to it."""
    return {"HOME": str(tmp_path), "PIP_INDEX_URL": f"{hub.url}/simple"}


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    return tmp_path / "credentials.toml"


@pytest.fixture
async def hubs(
    env: dict[str, str], credentials: Path, hub: HubServer, registry: RegistryServer
) -> AsyncIterator[Hubs]:
    access = HubAccess(
        CredentialsFile(credentials),
        env,
        ollama_host=registry.name,
        github_raw=f"{hub.url}/raw",
        github_media=f"{hub.url}/media",
    )
    async with open_hubs(SystemClock(), SeededEntropy(1), access, retry=IMPATIENT, idle_read_s=0.5) as opened:
        yield opened
