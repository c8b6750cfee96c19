"""What every test can rely on, and how tests share the processes that run them."""

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from xdist.dsession import Producer
from xdist.scheduler import LoadScopeScheduling

# Shells let background commands ignore Ctrl-C, and every process that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Collecting makes a million objects that stay: looking for garbage among them would be a fifth of the work.
gc.disable()

WORKERS_MOST = 8
SEEDS = "tests/sim/test_simulation.py"

# How fast inputs are made up says how busy the machine is, and nothing about what is tested.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("usual", _PATIENT, max_examples=50)
settings.register_profile("quick", _PATIENT, max_examples=20)
settings.register_profile("thorough", _PATIENT, max_examples=500)
settings.load_profile("usual")

# Fixtures of fleets that take long to start: one process runs all modules that use one, in turn.
SHARED_FLEETS = ("pair", "alone", "common")

# What takes longest begins first, so that all processes end together. Folders with shared fleets
# come late: who has run what shares one goes on elsewhere, and the fleet ends.
ORDER = (
    "tests/integration/chaos",
    "tests/integration/cli",
    "tests/integration/running",
    "tests/integration/ops",
    "tests/integration/depot",
    "tests/integration/serving",
    "tests/integration/fleet",
    "tests/integration",
    "tests/sim/serving",
    "tests/sim",
    "tests/contract",
    "tests/unit",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    groups: dict[str, str] = {}
    for item in items:
        shared = [name for name in SHARED_FLEETS if name in getattr(item, "fixturenames", ())]
        if shared:
            groups[_module(item)] = shared[0]
    for item in items:
        if _module(item) in groups:
            item.add_marker(pytest.mark.xdist_group(groups[_module(item)]))
    items.sort(key=lambda item: _rank(_module(item), groups))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # As in our own processes once they run.
    gc.enable()


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _rank(module: str, groups: dict[str, str]) -> tuple[int, str]:
    if module in groups:
        return -1, groups[module]
    return next((rank for rank, folder in enumerate(ORDER) if module.startswith(folder)), len(ORDER)), ""


class WholeModules(LoadScopeScheduling):  # type: ignore[misc]  # It is untyped.
    """One process runs all tests of a module, in their order: what they share is set up once, and some tell
    one story. Seeds of a simulation share nothing, and fill whatever room is left."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.rfind("@") > nodeid.rfind("]"):  # Then a group's name stands behind it.
            return nodeid.rpartition("@")[2]
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
