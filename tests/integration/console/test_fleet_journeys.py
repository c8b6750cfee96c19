"""A backend's life as two people see it on two frontends: three workers, PostgreSQL, NATS and a registry, all
real. The tests are one story, told in this order."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.integration.chaos.corral import Corral, corral
from tests.integration.chaos.wares import broken, light
from tests.integration.console.browser import Complaints, visit
from tests.integration.console.pictures import Album, say_where
from tests.integration.console.test_telling import WATCH
from tests.integration.serving.asking import add_echo
from tests.support.processes import SHIPPED_GALLERY

pytestmark = pytest.mark.long
BACKEND = "alpha"
WORKERS = 3
IMAGE_BYTES = 1_500_000
THIN_BYTES_S = 250_000.0
QUICK_BYTES_S = 1e9
OVER_MS = 90_000
SHIFT_MAX = 0.02  # Of what a page shows, by how far it has moved by itself.
WATCH_SHIFT = """() => {
  window.shift = 0;
  new PerformanceObserver(list => {
    for (const one of list.getEntries()) if (!one.hadRecentInput) window.shift += one.value;
  }).observe({type: 'layout-shift'});
}"""
HEALTHY = f"{WORKERS} of {WORKERS} machines healthy"
BUSY = "worker busy"
BYTES = re.compile(r"[\d.]+ [KM]iB of [\d.]+ [KM]iB")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """What is not heard stays unhealthy: pages have to say what that means before it counts as offline."""
    place, gallery = tmp_path_factory.mktemp("console-fleet"), json.loads(SHIPPED_GALLERY)
    with corral(place, WORKERS, gallery, offline_after="1h") as made:
        yield made


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Album]:
    made = Album(tmp_path_factory.mktemp("screenshots"))
    yield made
    say_where(made, request.config)


@contextmanager
def both(browser: Browser, fleet: Corral, complaints: Complaints) -> Iterator[tuple[Page, Page]]:
    """A browser on each frontend."""
    with (
        visit(browser, fleet.frontend.url, complaints) as one,
        visit(browser, fleet.other.url, complaints) as other,
    ):
        yield one, other


def row(page: Page, node: str) -> Locator:
    """Of that machine, in the operation that is open."""
    return page.get_by_role("article").get_by_role("listitem").filter(has_text=node)


def begin_install(page: Page) -> str:
    """By the backend's card; the address of the operation."""
    page.goto("/backends")
    card = page.get_by_role("listitem").filter(has=page.get_by_text(BACKEND, exact=True))
    card.get_by_role("button", name="Install", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Install", exact=True).click()
    return follow_notice(page)


def follow_notice(page: Page) -> str:
    """To the operation that has begun; its id."""
    page.get_by_role("status").get_by_role("link").first.click()
    page.wait_for_url("**/operations/*")
    return page.url.rpartition("/")[2]


def test_an_install_on_three_is_watched_on_two_frontends_while_one_worker_dies_and_returns(
    fleet: Corral, browser: Browser, complaints: Complaints, album: Album
) -> None:
    lost = fleet.workers[2]
    fleet.wares.offer(BACKEND, light(1, IMAGE_BYTES))
    fleet.registry_link.thin(THIN_BYTES_S)
    with both(browser, fleet, complaints) as (one, other):
        op = begin_install(one)
        other.goto(f"/operations/{op}")
        for page in (one, other):
            for machine in fleet.workers:
                expect(row(page, machine.name)).to_contain_text(BYTES)
            page.evaluate(WATCH, BUSY)
        other.evaluate(WATCH_SHIFT)
        seen = row(other, lost.name).inner_text()
        expect(row(other, lost.name)).not_to_have_text(seen)  # Bytes move.
        lost.kill()
        fleet.registry_link.thin(QUICK_BYTES_S)
        for page in (one, other):
            for machine in fleet.workers[:2]:
                expect(row(page, machine.name)).to_contain_text("done", timeout=OVER_MS)
            expect(row(page, lost.name)).to_contain_text("queued", timeout=OVER_MS)
            expect(row(page, lost.name)).to_contain_text("no heartbeat")
            expect(row(page, lost.name)).to_contain_text("this goes on when it is back")
        assert other.evaluate("() => window.shift") < SHIFT_MAX
        album.take(other, "install-one-machine-lost")
        lost.start()
        for page in (one, other):
            expect(row(page, lost.name)).to_contain_text("done", timeout=OVER_MS)
            assert page.evaluate("() => window.seen") == []
    assert len({digest for one in fleet.workers for digest in fleet.on_disk(one).values()}) == 1


def test_a_canary_that_does_not_start_is_rolled_back_and_the_reason_is_shown(
    fleet: Corral, browser: Browser, complaints: Complaints, album: Album
) -> None:
    fleet.wares.offer(BACKEND, light(1))
    fleet.until_over(fleet.ask("install", BACKEND))
    fleet.wares.offer(BACKEND, broken(3))
    with both(browser, fleet, complaints) as (one, other):
        one.goto("/backends")
        one.get_by_role("button", name="Check for upgrades").click()
        one.get_by_role("button", name="Upgrade", exact=True).first.click()
        one.get_by_role("dialog").get_by_role("button", name="Upgrade", exact=True).click()
        other.goto(f"/operations/{follow_notice(one)}")
        for page in (one, other):
            steps = page.get_by_role("article").get_by_role("listitem")
            expect(steps.filter(has_text="failed")).to_contain_text("does not start", timeout=OVER_MS)
            expect(steps.filter(has_text="cancelled")).to_have_count(WORKERS - 1)
            expect(page.get_by_text("roll_back")).to_have_count(0)
        album.take(one, "canary-failed")
        one.goto("/backends")
        expect(one.get_by_text("is held back")).to_be_visible()
        card = one.get_by_role("listitem").filter(has_text=f"cpu-{BACKEND}")
        expect(card.get_by_text("newer one held back")).to_be_visible()
        album.take(one, "backends-held-back")


def test_a_killed_frontend_is_told_and_its_page_recovers(
    fleet: Corral, browser: Browser, album: Album
) -> None:
    quiet = Complaints()  # The browser complains of every attempt, rightly.
    with both(browser, fleet, quiet) as (one, other):
        for page in (one, other):
            page.goto("/fleet")
            expect(page.get_by_text(HEALTHY)).to_be_visible(timeout=OVER_MS)
        fleet.frontends[0].kill()
        expect(one.get_by_role("alert")).to_contain_text("Not connected")
        album.take(one, "frontend-lost")
        expect(other.get_by_role("alert")).to_have_count(0)
        fleet.frontends[0].start()
        fleet.wait_until_well()
        expect(one.get_by_role("alert")).to_have_count(0, timeout=OVER_MS)
        node = fleet.frontend.nodes()[fleet.workers[0].name]["id"]
        fleet.other.ask("PATCH", f"/api/nodes/{node}/labels", {"room": "attic"}).raise_for_status()
        for page in (one, other):
            expect(page.get_by_text("room=attic")).to_be_visible()
            expect(page.get_by_text(HEALTHY)).to_be_visible(timeout=OVER_MS)
    assert not [told for told in quiet.found if told.startswith("script")]


def test_a_model_that_is_added_on_one_frontend_chats_on_the_other(
    fleet: Corral, browser: Browser, complaints: Complaints, album: Album
) -> None:
    add_echo(fleet.frontend, "parrot")
    with both(browser, fleet, complaints) as (_, other):
        other.goto("/playground?model=parrot")
        other.get_by_role("textbox", name="Message").fill("**polly** wants a cracker")
        other.keyboard.press("Enter")
        answer = other.get_by_role("article", name="parrot")
        expect(answer.get_by_role("strong")).to_have_text("polly", timeout=OVER_MS)
        expect(answer.get_by_text(re.compile("^from node-"))).to_be_visible()
        album.take(other, "playground")
        for path in ("fleet", "fleet?view=table", "models", "models/gallery", "models/import", "operations"):
            other.goto(f"/{path}")
            expect(other.locator("h1").first).to_be_visible()
            album.take(other, path.replace("/", "-").replace("?view=", "-"))
