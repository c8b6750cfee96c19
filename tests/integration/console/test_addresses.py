"""What an address names is what is shown, or said to be missing: views are sent to colleagues."""

import re

from playwright.sync_api import Page, expect

from tests.integration.console.browser import PATIENCE_MS, Complaints
from tests.integration.serving.asking import add_echo
from tests.support.processes import Frontend
from tests.support.waiting import wait_until_blocking

expect.set_options(timeout=PATIENCE_MS)


def finished_load(up: Frontend, model: str) -> str:
    """The id of an operation that is over, and was dismissed: the stream does not tell it."""
    add_echo(up, model)
    op = str(up.ask("POST", f"/api/models/{model}/load").raise_for_status().json()["id"])

    def over() -> bool:
        return bool(up.get(f"/api/ops/{op}")["status"] == "succeeded")

    wait_until_blocking(over, within=PATIENCE_MS / 1000, what="the load to end")
    up.ask("POST", f"/api/ops/{op}/dismiss").raise_for_status()
    return op


def test_an_operation_that_was_dismissed_opens_by_its_address(page: Page, up: Frontend) -> None:
    op = finished_load(up, "long-ago")
    page.goto(f"/operations/{op}")
    card = page.get_by_role("article").filter(has_text="Load long-ago")
    expect(card.get_by_role("listitem")).to_contain_text("done")


def test_an_operation_that_does_not_exist_is_said_to_be_missing(page: Page, complaints: Complaints) -> None:
    complaints.expected.append((404, "/api/ops/none-such"))
    page.goto("/operations/none-such")
    expect(page.get_by_role("alert")).to_contain_text("There is no operation none-such")


def test_details_have_an_address(page: Page) -> None:
    page.goto("/backends")
    page.get_by_role("button", name=re.compile("^llama-cpp")).click()
    expect(page).to_have_url(re.compile("open="))
    page.reload()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading", name="llama-cpp")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("open="))
    page.goto("/models/gallery?find=no-such-thing&open=remuda%40qwen3-0.6b")
    expect(dialog.get_by_role("heading", name="qwen3-0.6b")).to_be_visible()


def test_a_machine_may_have_a_name_that_means_a_folder(page: Page, up: Frontend) -> None:
    id = up.register("..")["id"]
    try:
        page.goto("/fleet?view=table")
        page.get_by_role("link", name="..", exact=True).click()
        expect(page).to_have_title(".. · Machine · Remuda")
        page.reload()
        expect(page.get_by_role("heading", name="..", exact=True)).to_be_visible()
    finally:
        up.ask("DELETE", f"/api/nodes/{id}").raise_for_status()


def test_a_model_is_pinned_and_shown_to_be(page: Page, up: Frontend) -> None:
    add_echo(up, "keeper")
    page.goto("/models/keeper")
    page.get_by_role("button", name="More about keeper").click()
    page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.locator("h1 ~ .tag")).to_have_text("pinned")
    assert "pinned: true" in up.get("/api/models/keeper/config")["config"]
    page.get_by_role("button", name="More about keeper").click()
    page.get_by_role("button", name="Unpin").click()
    expect(page.locator("h1 ~ .tag")).to_have_count(0)
    assert "pinned" not in up.get("/api/models/keeper/config")["config"]


def test_removing_a_backend_names_what_runs_from_it(page: Page) -> None:
    page.goto("/backends?show=installed")
    card = page.get_by_role("listitem").filter(has=page.get_by_text("echo", exact=True))
    card.get_by_role("button", name="Remove").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("what it serves ends with it")).to_contain_text("echo on up")
    expect(dialog.get_by_text("the next request brings it back")).to_be_visible()
