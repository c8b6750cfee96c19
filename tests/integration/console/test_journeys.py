"""What people do with the console, in a real browser, on a real `remuda up`."""

import re

from playwright.sync_api import Browser, Page, expect

from tests.integration.console.browser import PATIENCE_MS, Complaints, visit
from tests.integration.serving.asking import add_echo
from tests.support.processes import Frontend

expect.set_options(timeout=PATIENCE_MS)
HOSTILE = "<img src=x onerror=\"document.title='broken in'\">"


def test_the_fleet_shows_this_machine(page: Page) -> None:
    page.goto("/")
    expect(page).to_have_title("Fleet · Remuda")
    expect(page.get_by_text("1 of 1 machine healthy")).to_be_visible()
    card = page.get_by_role("article").filter(has_text="up")
    expect(card.get_by_text("healthy")).to_be_visible()
    card.get_by_role("link", name="up").click()
    expect(page).to_have_title("up · Machine · Remuda")
    expect(page.get_by_role("heading", name="up", exact=True)).to_be_visible()


def test_a_chat_in_the_playground_is_answered_and_says_by_which_machine(page: Page, up: Frontend) -> None:
    page.goto("/playground?model=echo")
    page.get_by_role("textbox", name="Message").fill("**three** words here")
    page.keyboard.press("Enter")
    answer = page.get_by_role("article", name="echo")
    expect(answer.get_by_role("strong")).to_have_text("three")
    expect(answer.get_by_text("words here")).to_be_visible()
    expect(answer.get_by_text("from up")).to_be_visible()
    expect(answer.get_by_text("first token after")).to_be_visible()
    answer.get_by_role("button", name="Why there?").click()
    why = page.get_by_role("dialog", name="Why this answer came from there")
    expect(why.get_by_text("Answered by")).to_be_visible()
    expect(why.get_by_text("Because")).to_be_visible()


def test_an_operation_is_seen_while_it_happens(page: Page, up: Frontend) -> None:
    add_echo(up, "slow", "echo_load_delay_ms:4000")
    page.goto("/models/slow")
    page.get_by_role("button", name="Load", exact=True).click()
    strip = page.get_by_role("link", name=re.compile("Loading slow"))
    expect(strip).to_be_visible()
    strip.click()
    expect(page).to_have_title("Operations · Remuda")
    card = page.get_by_role("article").filter(has_text="slow")
    expect(card.get_by_text("running")).to_be_visible()
    expect(card.get_by_text("done", exact=True).first).to_be_visible()


def test_two_browsers_show_the_same_without_being_reloaded(
    page: Page, browser: Browser, up: Frontend, complaints: Complaints
) -> None:
    page.goto("/models")
    expect(page.get_by_role("link", name="echo", exact=True)).to_be_visible()
    with visit(browser, up.url, complaints) as other:
        other.goto("/models/import")
        other.get_by_label("YAML").fill("name: from-elsewhere\nbackend: echo\n")
        other.get_by_role("button", name="Add the model").click()
        expect(other).to_have_title("from-elsewhere · Models · Remuda")
        expect(page.get_by_role("link", name="from-elsewhere", exact=True)).to_be_visible()
        other.get_by_role("button", name="More about from-elsewhere").click()
        other.get_by_role("button", name="Remove").click()
        other.get_by_role("dialog").get_by_role("button", name="Remove").click()
        expect(page.get_by_role("link", name="from-elsewhere", exact=True)).to_have_count(0)


def test_markup_that_a_model_writes_is_text(page: Page) -> None:
    page.goto("/playground?model=echo")
    page.get_by_role("textbox", name="Message").fill(f"{HOSTILE} [link](javascript:alert) <script>1</script>")
    page.keyboard.press("Enter")
    answer = page.get_by_role("article", name="echo")
    expect(answer.get_by_text("onerror")).to_be_visible()
    expect(answer.get_by_text("<script>")).to_be_visible()
    expect(answer.locator("img, script, a[href^='javascript']")).to_have_count(0)
    expect(page).to_have_title("Playground · Remuda")


def test_markup_in_names_and_descriptions_is_text(page: Page, up: Frontend) -> None:
    up.register(HOSTILE)
    add_echo(up, "hostile", description=HOSTILE)
    try:
        page.goto("/fleet?view=table")
        expect(page.get_by_role("link", name=HOSTILE, exact=True)).to_be_visible()
        page.get_by_role("link", name=HOSTILE, exact=True).click()
        expect(page).to_have_title(f"{HOSTILE} · Machine · Remuda")
        page.goto("/models/hostile")
        expect(page.get_by_role("definition").get_by_text(HOSTILE)).to_be_visible()
        expect(page.locator("img")).to_have_count(0)
    finally:
        up.ask("DELETE", f"/api/nodes/{up.nodes()[HOSTILE]['id']}").raise_for_status()


def test_every_page_opens_at_its_address_and_by_the_palette(page: Page) -> None:
    for path, heading in (
        ("/fleet", "Fleet"),
        ("/operations", "Operations"),
        ("/backends", "Backends"),
        ("/models/gallery", "Models"),
        ("/keys", "Keys"),
        ("/settings", "Settings"),
    ):
        page.goto(path)
        expect(page.get_by_role("heading", name=heading, exact=True).first).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Find or do").fill("chat echo")
    expect(page.get_by_role("option", name="Chat with echo")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page).to_have_title("Playground · Remuda")
