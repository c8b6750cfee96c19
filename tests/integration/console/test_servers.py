"""Servers that run without us, in the console: found out, adopted, asked, and let go."""

import json
from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import Page, Route, expect

from remuda.host.ports import free_port
from tests.integration.console.browser import PATIENCE_MS, Complaints
from tests.support.model_servers import ModelServer, model_server
from tests.support.processes import Frontend

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def rack() -> Iterator[ModelServer]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(model_server()) as server:
        yield server


def test_a_server_is_added_answers_in_the_playground_and_is_let_go(
    page: Page, up: Frontend, rack: ModelServer
) -> None:
    page.goto("/servers?add=1")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Address").fill(rack.url)
    dialog.get_by_label("Name to give it").fill("rack")
    dialog.get_by_role("button", name="Add", exact=True).click()
    card = page.get_by_role("article", name="rack")
    expect(card.get_by_text("answers")).to_be_visible()
    expect(card.get_by_text("rack/small")).to_be_visible()
    card.get_by_role("button", name="Edit").click()
    dialog.get_by_label("Price").fill("0.5/2")
    dialog.get_by_label("Budget of a month").fill("10")
    dialog.get_by_label("Tokens of an answer").fill("50")
    dialog.get_by_role("button", name="Save").click()
    expect(card).to_contain_text("of 10 this month")
    card.get_by_role("listitem").filter(has_text="small").get_by_role("link", name="Chat").click()
    page.get_by_role("textbox", name="Message").fill("hello")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="rack/small")).to_contain_text("w0 w1 w2 w3 w4")
    page.goto("/servers")
    card.get_by_role("button", name="More about rack").click()
    page.get_by_role("button", name="Remove").click()
    expect(dialog).to_contain_text("its prices and budget")
    dialog.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("heading", name="No server yet")).to_be_visible()
    assert up.get("/api/servers") == {"servers": []}


def test_that_tokens_cost_nothing_is_said_only_by_people(page: Page, complaints: Complaints) -> None:
    complaints.expected.append((400, "/api/servers"))
    asked: list[dict[str, object]] = []

    def refuse(route: Route) -> None:
        if route.request.method == "GET":
            return route.continue_()
        asked.append(json.loads(route.request.post_data or "{}"))
        return route.fulfill(status=400, json={"error": {"message": "it needs prices"}})

    page.route("**/api/servers", refuse)
    page.goto("/servers?add=1")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Address").fill("https://api.example.com/v1")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("it needs prices")
    dialog.get_by_label("Its tokens cost nothing").check()
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.get_by_role("button", name="Add", exact=True)).to_be_enabled()
    assert ["free" in one for one in asked] == [False, True]


def test_a_server_that_does_not_answer_is_added_only_by_saying_so(
    page: Page, up: Frontend, complaints: Complaints
) -> None:
    complaints.expected.append((502, "/api/servers"))
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    page.goto("/servers?add=1")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Address").fill(url)
    dialog.get_by_label("Name to give it").fill("asleep")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("cannot be reached")
    dialog.get_by_role("combobox", name="Kind").select_option("Ollama")
    dialog.get_by_label("though it does not answer now").check()
    dialog.get_by_role("button", name="Add", exact=True).click()
    card = page.get_by_role("article", name="asleep")
    expect(card.get_by_text("absent")).to_be_visible()
    up.ask("DELETE", "/api/servers/asleep").raise_for_status()
    expect(card).to_have_count(0)
