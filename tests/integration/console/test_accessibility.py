"""axe-core on every page and dialog, in light and dark: no serious violation. Dialogs are opened by keyboard,
and give the focus back."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import Browser, Page, expect
from tools.build_console import SOURCE, install_packages

from tests.integration.console.browser import PATIENCE_MS, Complaints, visit
from tests.integration.console.dialogs import DIALOGS, KEY, SERVER, Opened
from tests.support.model_servers import model_server
from tests.support.processes import Frontend

PAGES = (
    "/fleet",
    "/fleet?view=table",
    "/machines/up",
    "/machines/up/settings",
    "/operations",
    "/backends",
    "/models",
    "/models/gallery",
    "/models/import",
    "/models/echo",
    "/models/echo/configuration",
    "/playground",
    "/servers",
    "/keys",
    "/settings",
)
SERIOUS = ("serious", "critical")
# axe runs beside the page: its policy forbids scripts that it has not brought itself.
RUN = "() => axe.run(document, {resultTypes: ['violations']})"


@pytest.fixture
def with_one_of_each(up: Frontend) -> Iterator[Frontend]:
    """A key and a server beside the machine and its model."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(model_server()) as server:
        key = up.ask("POST", "/api/keys", {"name": KEY, "tokens_per_day": 5000}).raise_for_status().json()
        up.ask("POST", "/api/servers", {"url": server.url, "name": SERVER}).raise_for_status()
        yield up
        up.ask("DELETE", f"/api/servers/{SERVER}").raise_for_status()
        up.ask("DELETE", f"/api/keys/{key['id']}").raise_for_status()


def violations(page: Page, axe: str) -> list[str]:
    page.evaluate(axe)
    result: Any = page.evaluate(RUN)
    return [
        f"{one['id']}: {node['html'][:160]}"
        for one in result["violations"]
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_and_no_dialog_has_a_serious_violation(
    browser: Browser, with_one_of_each: Frontend, complaints: Complaints, scheme: Literal["light", "dark"]
) -> None:
    install_packages()
    axe = (SOURCE / "node_modules/axe-core/axe.min.js").read_text()
    found: dict[str, list[str]] = {}
    with visit(browser, with_one_of_each.url, complaints) as page:
        page.emulate_media(color_scheme=scheme)
        for path in PAGES:
            page.goto(path)
            expect(page.locator("h1").first).to_be_visible(timeout=PATIENCE_MS)
            page.wait_for_load_state("load")
            found[path] = violations(page, axe)
        for one in DIALOGS:
            page.goto(one.path)
            one.open(page)
            expect(page.get_by_role("dialog", name=one.title)).to_be_visible(timeout=PATIENCE_MS)
            page.wait_for_load_state("load")
            found[one.name] = violations(page, axe)
        found["why"] = violations(ask_why(page), axe)
    assert {path: told for path, told in found.items() if told} == {}


def ask_why(page: Page) -> Page:
    """An answer in the playground, and what decided where it came from."""
    page.goto("/playground?model=echo")
    page.get_by_role("textbox", name="Message").fill("hello")
    page.keyboard.press("Enter")
    why = page.get_by_role("button", name="Why there?")
    why.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Why this answer")).to_contain_text("Answered by")
    return page


BRIEFLY = ("server", "usage", "revoke")


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(one, id=one.name, marks=() if one.name in BRIEFLY else pytest.mark.long)
        for one in DIALOGS
    ],
)
def test_a_dialog_is_opened_by_keyboard_and_gives_the_focus_back(
    page: Page, with_one_of_each: Frontend, one: Opened
) -> None:
    page.goto(one.path)
    back = one.open(page)
    dialog = page.get_by_role("dialog", name=one.title)
    expect(dialog).to_be_visible(timeout=PATIENCE_MS)
    expect(dialog.locator(":focus")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(back).to_be_focused()


def test_an_answered_question_gives_the_focus_back(page: Page, with_one_of_each: Frontend) -> None:
    page.goto("/keys")
    row = page.get_by_role("row").filter(has_text=KEY)
    row.get_by_role("button", name=f"More about {KEY}").click()
    page.get_by_role("button", name="Revoke", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Keep").press("Enter")
    expect(row.get_by_role("button", name=f"More about {KEY}")).to_be_focused()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Find or do")).to_be_focused()
    page.keyboard.press("Control+k")
    expect(row.get_by_role("button", name=f"More about {KEY}")).to_be_focused()
