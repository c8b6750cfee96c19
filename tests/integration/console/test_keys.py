"""Keys in the console: made and shown once, limited, paused and revoked."""

import re

from playwright.sync_api import Locator, Page, expect

from tests.integration.console.browser import PATIENCE_MS
from tests.support.processes import Frontend, Json

expect.set_options(timeout=PATIENCE_MS)


def key_named(up: Frontend, name: str) -> Json:
    found: Json = next(key for key in up.get("/api/keys") if key["name"] == name)
    return found


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has_text=name)


def more(page: Page, name: str, verb: str) -> None:
    row(page, name).get_by_role("button", name=f"More about {name}").click()
    page.get_by_role("button", name=verb, exact=True).click()


def test_a_key_is_shown_once_and_revoked(page: Page) -> None:
    page.goto("/keys")
    page.get_by_role("button", name="Create a key").first.click()
    page.get_by_role("textbox", name=re.compile("^Name")).fill("laptop")
    page.get_by_role("button", name="Create", exact=True).click()
    dialog = page.get_by_role("dialog")
    shown = dialog.get_by_text(re.compile("^rmd|^sk-|^remuda"))
    expect(shown).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.mouse.click(5, 5)
    expect(shown).to_be_visible()  # It would be lost.
    dialog.get_by_role("button", name="I have kept it").click()
    expect(shown).to_have_count(0)
    more(page, "laptop", "Revoke")
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row(page, "laptop")).to_have_count(0)


def test_limits_of_a_key_are_written_as_people_write_them_and_it_is_paused(page: Page, up: Frontend) -> None:
    made = up.ask("POST", "/api/keys", {"name": "website", "requests_per_minute": 60}).json()
    page.goto("/keys")
    expect(row(page, "website")).to_contain_text("60 requests/min")
    expect(row(page, "website")).to_contain_text("never")
    row(page, "website").get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Tokens per day").fill("plenty")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("“plenty” is no whole number")
    dialog.get_by_label("Tokens per day").fill("2.5M")
    dialog.get_by_label("Requests per minute").fill("")
    dialog.get_by_label("Valid until").fill("2099-01-31T12:00")
    dialog.get_by_role("button", name="Save").click()
    expect(row(page, "website")).to_contain_text("2.5M tokens/day")
    expect(row(page, "website")).not_to_contain_text("requests/min")
    kept = key_named(up, "website")
    assert (kept["tokens_per_day"], kept["expires_at"][:10]) == (2_500_000, "2099-01-31")
    more(page, "website", "Usage")
    expect(dialog.get_by_text("Nothing.")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    more(page, "website", "Pause")
    expect(row(page, "website")).to_contain_text("paused")
    assert key_named(up, "website")["state"] == "paused"
    more(page, "website", "Resume")
    expect(row(page, "website")).to_contain_text("active")
    up.ask("DELETE", f"/api/keys/{made['id']}").raise_for_status()


def test_what_another_does_with_keys_appears(page: Page, up: Frontend) -> None:
    page.goto("/keys")
    expect(page.get_by_role("heading", name="Keys", exact=True)).to_be_visible()
    made = up.ask("POST", "/api/keys", {"name": "colleague"}).json()
    expect(row(page, "colleague")).to_contain_text("active")
    path = f"/api/keys/{made['id']}"
    up.ask("PATCH", path, {"paused": True}).raise_for_status()
    expect(row(page, "colleague")).to_contain_text("paused")
    up.ask("DELETE", path).raise_for_status()
    expect(row(page, "colleague")).to_have_count(0)
