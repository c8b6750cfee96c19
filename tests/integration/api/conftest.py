"""Three frontends for each module: one lets everybody in, one asks an admin, one is open to the network."""

from collections.abc import AsyncIterator

import pytest

from tests.support.frontends import LiveFrontend, live_frontend


@pytest.fixture(scope="module")
async def frontend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveFrontend]:
    async with live_frontend(tmp_path_factory.mktemp("frontend")) as live:
        yield live


@pytest.fixture(scope="module")
async def strict_frontend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveFrontend]:
    async with live_frontend(tmp_path_factory.mktemp("strict"), auto_approve=False) as live:
        yield live


@pytest.fixture(scope="module")
async def open_frontend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveFrontend]:
    async with live_frontend(tmp_path_factory.mktemp("open"), host="0.0.0.0") as live:
        yield live
