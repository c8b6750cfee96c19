"""What the playground says of answers that are cut off, that come at once, or that no model has written."""

import json
import re

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.integration.console.browser import PATIENCE_MS, Complaints
from tests.integration.serving.asking import add_echo, replicas
from tests.support.processes import Frontend
from tests.support.waiting import wait_until_blocking

expect.set_options(timeout=PATIENCE_MS)
ADDRESS = "**/v1/chat/completions"
DONE = "data: [DONE]\n\n"


def streamed(*pieces: str) -> str:
    chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)


def answered(page: Page, body: str, kind: str = "text/event-stream") -> Locator:
    """What is shown when that comes back."""

    def fulfill(route: Route) -> None:
        route.fulfill(content_type=kind, body=body)

    page.route(ADDRESS, fulfill)
    page.goto("/playground?model=echo")
    page.get_by_role("textbox", name="Message").fill("hello")
    page.keyboard.press("Enter")
    return page.get_by_role("article", name="echo")


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        (streamed("half an"), "text/event-stream", "The answer was cut off"),
        ("<html>Bad gateway</html>", "text/html", "does a proxy stand between"),
    ],
)
def test_an_answer_that_is_none_is_not_shown_as_one(page: Page, body: str, kind: str, told: str) -> None:
    answer = answered(page, body, kind)
    expect(answer.get_by_role("alert")).to_contain_text(told)
    expect(answer.get_by_role("button", name="Try again")).to_be_visible()


def test_an_answer_that_comes_at_once_has_no_speed(page: Page) -> None:
    answer = answered(page, streamed("one two three") + DONE)
    expect(answer.get_by_text("3 words")).to_be_visible()
    expect(answer.get_by_text(re.compile("(tok|words)/s"))).to_have_count(0)


def test_lists_escapes_and_addresses_are_as_the_model_meant_them(page: Page) -> None:
    text = "- one\n- two\n\n3. three\n4. four\n\n\\*plain\\* https://example.org/a. ```\nnever closed"
    answer = answered(page, streamed(*text) + DONE)
    expect(answer.locator("ul > li")).to_have_text(["one", "two"])
    expect(answer.locator("ol[start='3'] > li")).to_have_text(["three", "four"])
    expect(answer.get_by_text("*plain*")).to_be_visible()
    expect(answer.get_by_role("link", name="https://example.org/a", exact=True)).to_be_visible()


def test_the_code_is_of_what_was_asked_and_not_of_what_was_answered(page: Page) -> None:
    answer = answered(page, streamed("hi") + DONE)
    expect(answer.get_by_text("1 word")).to_be_visible()
    page.get_by_role("button", name="View code").click()
    expect(page.get_by_role("dialog")).to_contain_text('"content": "hello"')
    expect(page.get_by_role("dialog")).not_to_contain_text("assistant")


def test_a_model_that_is_not_there_is_said_to_be_missing(page: Page) -> None:
    page.goto("/playground?model=gone-for-good")
    expect(page.get_by_text("There is no model gone-for-good here.")).to_be_visible()


def test_an_answer_that_nobody_reads_any_more_is_given_up(
    page: Page, up: Frontend, complaints: Complaints
) -> None:
    complaints.forgiven.append("request: POST .*/v1/chat/completions: net::ERR_ABORTED")
    add_echo(up, "long-winded", "echo_token_rate:15")
    page.goto("/playground?model=long-winded")
    page.get_by_role("textbox", name="Message").fill("word " * 3000)
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="long-winded").get_by_text("word word")).to_be_visible()

    def in_flight() -> int:
        return sum(one["in_flight"] for one in replicas(up) if one["model"] == "long-winded")

    wait_until_blocking(lambda: in_flight() == 1, within=PATIENCE_MS / 1000, what="a request in flight")
    page.get_by_role("link", name=re.compile("^Fleet")).first.click()  # It may have a number.
    wait_until_blocking(lambda: in_flight() == 0, within=PATIENCE_MS / 1000, what="its end")
