"""One browser and one fleet of one machine for all of this folder."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.integration.console.browser import Complaints, chromium, visit
from tests.integration.serving.asking import add_echo, chat, said
from tests.support.processes import Frontend, ranch


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="package")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    with ranch(tmp_path_factory.mktemp("console") / "ranch") as place:
        frontend = place.up()
        add_echo(frontend)
        # Loaded: an answer that has to wait for a load begins before its machine is known.
        assert said(chat(frontend, "echo"))
        yield frontend


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    kept = Complaints()
    yield kept
    assert kept.found == []


@pytest.fixture
def page(browser: Browser, up: Frontend, complaints: Complaints) -> Iterator[Page]:
    with visit(browser, up.url, complaints) as opened:
        yield opened
