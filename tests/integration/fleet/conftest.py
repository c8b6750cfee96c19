"""Places to start processes in: one per test, and one with a `remuda up` that tests of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Frontend, Ranch, ranch


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Ranch]:
    with ranch(tmp_path / "ranch") as started:
        yield started


@pytest.fixture(scope="package")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranch]:
    with ranch(tmp_path_factory.mktemp("common") / "ranch") as started:
        yield started


@pytest.fixture(autouse=True)
def _workers_stop_with_their_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each costs the shared frontend some work twice a second."""
    yield
    if "common" in request.fixturenames:
        request.getfixturevalue("common").stop_workers()


@pytest.fixture(scope="package")
def up(common: Ranch) -> Frontend:
    """Tests may add to its fleet, under names of their own, but leave the rest as it is."""
    return common.up()
