"""What every test can rely on, and how tests share the processes that run them."""

import gc
import signal
import traceback
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.event_loop import Loop
from tests.support.forked_tests import add_option, process_count, run_forked

# Shells let background commands ignore Ctrl-C, and every process that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Collecting makes a million objects that stay: looking for garbage among them would be a fifth of the work.
gc.disable()

SEEDS = "tests/sim/test_simulation.py"

# How fast inputs are made up says how busy the machine is, and nothing about what is tested.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("usual", _PATIENT, max_examples=25)
settings.register_profile("quick", _PATIENT, max_examples=15)
settings.register_profile("thorough", _PATIENT, max_examples=500)
settings.load_profile("usual")

# Fixtures that take long to start: one process runs all modules that use one, in turn.
SHARED_FLEETS = ("pair", "alone", "common", "browser", "database_url")
_fleet_of: dict[str, str] = {}  # By module.

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


def pytest_addoption(parser: pytest.Parser) -> None:
    add_option(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if process_count(config) <= 1:
        return
    for item in items:
        shared = [name for name in SHARED_FLEETS if name in getattr(item, "fixturenames", ())]
        if shared:
            _fleet_of[_module(item)] = shared[0]
    items.sort(key=lambda item: _rank(_module(item)))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # As in our own processes once they run.
    gc.enable()


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _rank(module: str) -> tuple[int, str]:
    if module in _fleet_of:
        return -1, _fleet_of[module]
    return next((rank for rank, folder in enumerate(ORDER) if module.startswith(folder)), len(ORDER)), ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Of groups in groups, as task groups raise them, pytest shows the outermost ten, and not what failed."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, BaseExceptionGroup):
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        report.sections.append(("What failed within", "".join(traceback.format_exception(error))))
    return report


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    return run_forked(session, _group)


def _group(item: pytest.Item) -> str:
    """One process runs all tests of a module, in their order: what they share is set up once, and some tell
    one story. Seeds of a simulation share nothing, and fill whatever room is left."""
    module = _module(item)
    return item.nodeid if module == SEEDS else _fleet_of.get(module, module)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": Loop}
