"""What can be lost by a click is said before, as it is; and what was recorded is shown."""

import re

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.integration.console.browser import PATIENCE_MS, Complaints
from tests.integration.serving.asking import add_echo
from tests.support.processes import Frontend

pytestmark = pytest.mark.long

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def aliased(up: Frontend) -> str:
    add_echo(up, "original")
    up.ask("POST", "/api/models", {"config": "name: other-name\nalias: original\n"}).raise_for_status()
    return "original"


def test_removing_a_model_names_what_goes_and_the_alias_that_breaks(
    page: Page, up: Frontend, aliased: str
) -> None:
    page.goto(f"/models/{aliased}")
    page.get_by_role("button", name=f"More about {aliased}").click()
    page.get_by_role("button", name="Remove").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("its configuration")).to_be_visible()
    expect(dialog.get_by_text("the alias other-name")).to_be_visible()
    expect(dialog.get_by_text("loaded replica")).to_have_count(0)
    expect(dialog.get_by_text("files that the fleet")).to_have_count(0)
    dialog.get_by_role("button", name="Remove").click()
    page.goto("/models")
    row = page.get_by_role("row").filter(has_text="other-name")
    expect(row.get_by_text("broken alias")).to_be_visible()
    expect(row.get_by_role("link", name="Chat")).to_have_count(0)
    up.ask("DELETE", "/api/models/other-name").raise_for_status()


def test_text_that_is_not_saved_is_asked_for_before_the_page_is_left(page: Page, up: Frontend) -> None:
    page.goto("/models/echo")
    page.get_by_role("link", name="Configuration").click()
    area = page.get_by_role("textbox", name="Configuration of echo")
    area.fill("name: echo\nbackend: echo\ndescription: not saved\n")
    page.get_by_role("link", name="Overview").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep editing").click()
    expect(area).to_have_value("name: echo\nbackend: echo\ndescription: not saved\n")
    page.go_back()
    page.get_by_role("dialog").get_by_role("button", name="Keep editing").click()
    expect(area).to_have_value("name: echo\nbackend: echo\ndescription: not saved\n")
    page.get_by_role("link", name="Overview").click()
    page.get_by_role("dialog").get_by_role("button", name="Leave").click()
    expect(page.get_by_role("heading", name="Loaded on")).to_be_visible()


def test_a_machine_has_its_history(page: Page, up: Frontend) -> None:
    page.goto("/machines/up/history")
    expect(page.get_by_role("cell", name="registered").first).to_be_visible()
    expect(page.get_by_text("Nothing is recorded yet")).to_have_count(0)


def test_a_file_that_is_no_model_is_refused_where_it_was_chosen(page: Page, up: Frontend) -> None:
    page.goto("/models/import")
    page_file: FilePayload = {
        "name": "page.gguf",
        "mimeType": "text/html",
        "buffer": b"<html>no model</html>",
    }
    page.get_by_role("region", name="Upload").locator("input[type=file]").set_input_files(files=[page_file])
    refusal = page.get_by_role("region", name="Upload").get_by_role("alert")
    expect(refusal).to_have_text(re.compile("page.gguf is not a GGUF file"))
    assert up.get("/api/model-uploads")["uploads"] == []


def test_a_configuration_does_not_replace_a_model_of_its_name_unasked(
    page: Page, up: Frontend, complaints: Complaints
) -> None:
    add_echo(up, "taken")
    complaints.expected.append((409, "/api/models"))
    page.goto("/models/import")
    page.get_by_label("YAML").fill("name: taken\nbackend: echo\ndescription: another\n")
    page.get_by_role("button", name="Add the model").click()
    question = page.get_by_role("dialog", name="Replace the model of this name?")
    expect(question.get_by_text("taken")).to_be_visible()
    expect(question.get_by_role("button", name="Keep it")).to_be_focused()
    page.keyboard.press("Enter")
    expect(question).to_have_count(0)
    assert "another" not in up.get("/api/models/taken/config")["config"]
    page.get_by_role("button", name="Add the model").click()
    question.get_by_role("button", name="Replace").click()
    expect(page).to_have_title("taken · Models · Remuda")
    assert "another" in up.get("/api/models/taken/config")["config"]


def test_a_dialog_opens_where_one_writes(page: Page) -> None:
    page.goto("/keys?create=1")
    expect(page.get_by_role("textbox", name=re.compile("^Name Who"))).to_be_focused()
