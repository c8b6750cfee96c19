"""What every test can rely on, and how tests share the processes that run them."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from xdist.dsession import Producer
from xdist.scheduler import LoadScopeScheduling

# Shells let background commands ignore Ctrl-C, and every process that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

WORKERS_MOST = 8
SEEDS = "tests/sim/test_simulation.py"

# How fast inputs are made up says how busy the machine is, and nothing about what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("busy"), max_examples=500)
settings.load_profile("busy")


class WholeModules(LoadScopeScheduling):  # type: ignore[misc]  # It is untyped.
    """One process runs all tests of a module, in their order: what they share is set up once, and some tell
    one story. Seeds of a simulation share nothing, and fill whatever room is left."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return nodeid if module == SEEDS else module


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WholeModules:
    return WholeModules(config, log)


def pytest_xdist_auto_num_workers() -> int:
    """Twice as many as there are cores: half of the time a test waits, for processes and for time to pass."""
    return min(2 * (os.cpu_count() or 1), WORKERS_MOST)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """The event loop of production."""
    return "asyncio", {"use_uvloop": True}
