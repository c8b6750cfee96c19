"""One registry per test process, depots of their own, and commands about them."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from remuda.cli.verbs import root
from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.core.retry import Backoff
from remuda.oci.client import RegistryClient, open_client
from remuda.oci.model import Platform
from remuda.oci.transport import RetryPolicy
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.layout import DepotLayout
from tests.support.logs import log_left_as_it_was
from tests.support.registry import RegistryServer, registry_server

IMPATIENT = RetryPolicy(
    attempts_max=4, backoff=Backoff(first=timedelta(milliseconds=5), most=timedelta(milliseconds=20))
)
LINUX = Platform("linux", "amd64")
Remuda = Callable[..., Result]


def backends_command(*words: str, code: int = 0) -> Result:
    """`remuda backends WORDS` in this process, which ends with that exit code."""
    result = CliRunner().invoke(root, ["backends", *words])
    assert result.exit_code == code, (result.output, result.stderr)
    return result


@pytest.fixture(autouse=True)
def _log_is_left_as_it_was() -> Iterator[None]:
    """Commands set it up anew."""
    with log_left_as_it_was():
        yield


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def places(tmp_path: Path) -> DepotLayout:
    return DepotLayout(tmp_path / "backends", tmp_path / "system", tmp_path / "depot")


@pytest.fixture
async def client() -> AsyncIterator[RegistryClient]:
    async with open_client(SystemClock(), SeededEntropy(1), retry=IMPATIENT, idle_read_s=2) as opened:
        yield opened


@pytest.fixture
def depot(places: DepotLayout, client: RegistryClient) -> Depot:
    return Depot(places, SystemClock(), client, LINUX)
