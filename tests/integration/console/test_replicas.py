"""How many replicas a model is to have, where the next load would go, and what the palette does."""

import re

from playwright.sync_api import Page, expect

from tests.integration.console.browser import PATIENCE_MS
from tests.integration.serving.asking import add_echo
from tests.support.processes import Frontend

expect.set_options(timeout=PATIENCE_MS)


def test_replicas_are_declared_explained_and_taken_back(page: Page, up: Frontend) -> None:
    add_echo(up, "several")
    page.goto("/models/several")
    wanted = page.get_by_role("region", name="Wanted replicas")
    expect(wanted).to_contain_text("one while it is used")
    wanted.get_by_role("button", name="Change").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("radio", name="A number").check()
    dialog.get_by_role("textbox", name="At least").fill("1")
    dialog.get_by_label("Only on machines with").fill("attic")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("“attic” are no labels")
    dialog.get_by_label("Only on machines with").fill("room=nowhere")
    dialog.get_by_role("button", name="Save").click()
    expect(wanted).to_contain_text("at least 1")
    expect(wanted).to_contain_text("set here")
    expect(wanted).to_contain_text("room=nowhere")
    expect(wanted).to_contain_text("tried again")  # No machine has that label.
    wanted.get_by_role("button", name="Change").click()
    dialog.get_by_label("Only on machines with").fill("")
    dialog.get_by_role("button", name="Save").click()
    expect(wanted).to_contain_text("1 loaded")
    wanted.get_by_role("button", name="Change").click()
    dialog.get_by_role("radio", name="As its configuration says").check()
    dialog.get_by_role("button", name="Save").click()
    expect(wanted).to_contain_text("one while it is used")
    assert up.get("/api/nodes/scheduling") == []


def test_the_page_of_a_model_says_where_the_next_load_would_go(page: Page, up: Frontend) -> None:
    add_echo(up, "next")
    page.goto("/models/next")
    plan = page.get_by_role("region", name="The next load")
    expect(plan).to_contain_text(re.compile("It would go to up"))
    page.get_by_role("button", name="Load", exact=True).click()
    expect(plan).to_contain_text("No machine can take it now")
    plan.get_by_text("Why not elsewhere").click()
    expect(plan).to_contain_text("it has 1 replica of next")


def test_the_palette_does_things(page: Page, up: Frontend) -> None:
    page.goto("/fleet")
    expect(page.get_by_text("machine healthy")).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Find or do").fill("drain up")
    page.get_by_role("option", name="Drain up").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_role("article").get_by_text("drained", exact=True)).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Find or do").fill("resume")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article").get_by_text("healthy")).to_be_visible()
