"""What a person is told after doing something: what came of it, where they look, and nothing untrue."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.integration.console.browser import Complaints
from tests.support.processes import Frontend

pytestmark = pytest.mark.long

NEVER = "There is no model"
WATCH = """told => {
  window.seen = [];
  new MutationObserver(() => {
    if (document.body?.innerText.includes(told)) window.seen.push(document.title);
  }).observe(document, {childList: true, subtree: true, characterData: true});
}"""


def test_a_model_that_was_just_added_is_not_said_to_be_missing(page: Page, up: Frontend) -> None:
    page.goto("/models/import")
    page.evaluate(WATCH, NEVER)
    page.get_by_label("YAML").fill("name: just-added\nbackend: echo\n")
    page.get_by_role("button", name="Add the model").click()
    expect(page.get_by_role("heading", name="just-added", exact=True)).to_be_visible()
    expect(page.get_by_role("region", name="Replicas", exact=True)).to_be_visible()
    assert page.evaluate("() => window.seen") == []
    up.ask("DELETE", "/api/models/just-added").raise_for_status()
    expect(page.get_by_text(NEVER)).to_be_visible()


def test_a_label_that_is_refused_is_told_in_the_dialog(page: Page, complaints: Complaints) -> None:
    complaints.expected.append((400, "/api/nodes/.*/labels"))
    page.goto("/fleet?view=table")
    page.get_by_role("checkbox").last.check()
    page.get_by_role("button", name="Label", exact=True).click()
    dialog = page.get_by_role("dialog", name="Label 1 machine")
    dialog.get_by_label("Label").fill("two words")
    dialog.get_by_role("button", name="Label", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("two words")
    dialog.get_by_label("Label").fill("told")
    dialog.get_by_role("button", name="Label", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_text("Labelled 1 machine")).to_be_visible()


def test_on_a_phone_the_icons_of_the_playground_have_names(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/playground?model=echo")
    for name in ("View code", "Two side by side", "Parameters"):
        expect(page.get_by_role("button", name=re.compile(f"^{name}$"))).to_be_visible()


def test_a_model_whose_file_the_frontend_has_is_said_to_be_there(page: Page, up: Frontend) -> None:
    told = up.get("/api/models/echo")
    page.route("**/api/models/echo", lambda route: route.fulfill(json={**told, **UPLOADED}))
    page.goto("/models/echo")
    about = page.get_by_role("region", name="About", exact=True)
    expect(about.get_by_text("the frontend", exact=True)).to_be_visible()
    expect(about.get_by_text("hf://org/model", exact=True)).to_be_visible()


UPLOADED = {"nodes_with_files": [], "on_frontend": True, "origin": "added", "source": "hf://org/model"}
