"""Pictures in the playground, as far as a backend that decodes them: by upload, and pasted."""

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect

from tests.integration.console import seeing_server
from tests.integration.console.browser import PATIENCE_MS, Complaints, visit
from tests.integration.console.seeing_server import picture_bytes
from tests.integration.serving.asking import add_echo
from tests.support.processes import Frontend, ranch

expect.set_options(timeout=PATIENCE_MS)
RED = (208, 32, 32)
BLUE = (16, 64, 224)
COPY = """async (base64) => {
  const bytes = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
  const picture = new Blob([bytes], { type: 'image/png' });
  await navigator.clipboard.write([new ClipboardItem({ 'image/png': picture })]);
}"""


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """A fleet with a model that sees, and with one that does not."""
    folder = tmp_path_factory.mktemp("seeing")
    manifest = {
        "protocol": "http",
        "command": [sys.executable, "-m", seeing_server.__name__, "--port", "{port}"],
        "env": {"PYTHONPATH": str(Path(__file__).parents[3])},
        "start_limit": "60s",
    }
    file = folder / "seeing.yaml"
    file.write_text(json.dumps(manifest))
    with ranch(folder / "ranch") as place:
        frontend = place.up()
        registered = place.remuda("backends", "register", str(file))
        assert registered.returncode == 0, registered.stderr
        config = {"name": "eyes", "backend": "seeing", "known_usecases": ["chat", "vision"]}
        added = frontend.ask("POST", "/api/models", {"config": json.dumps(config)})
        assert added.status_code == 201, added.text
        add_echo(frontend, "blind")
        second = {"name": "spectacles", "alias": "eyes"}
        frontend.ask("POST", "/api/models", {"config": json.dumps(second)}).raise_for_status()
        yield frontend


@pytest.fixture
def page(browser: Browser, seeing: Frontend, complaints: Complaints) -> Iterator[Page]:
    with visit(browser, seeing.url, complaints) as opened:
        opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
        yield opened


def png(name: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": "image/png", "buffer": content}


def ask(page: Page, question: str = "") -> Locator:
    message = page.get_by_role("textbox", name="Message")
    message.fill(question)
    message.press("Enter")
    return page.get_by_role("article", name="eyes")


def paste(page: Page, picture: bytes) -> None:
    page.evaluate(COPY, base64.b64encode(picture).decode())
    page.get_by_role("textbox", name="Message").focus()
    page.keyboard.press("Control+v")


@pytest.mark.long
def test_an_uploaded_and_a_pasted_picture_are_seen_by_the_model(page: Page) -> None:
    page.goto("/playground?model=eyes")
    picture = png("red.png", picture_bytes(31, 17, RED))
    page.get_by_label("Add an image").set_input_files(picture)
    expect(page.get_by_role("button", name="Remove red.png")).to_be_visible()
    expect(ask(page, "What is it?").last).to_contain_text("31 x 17 pixels, mostly #d02020")
    paste(page, picture_bytes(5, 9, BLUE))
    expect(page.get_by_role("button", name="Remove image.png")).to_be_visible()
    expect(ask(page).last).to_contain_text("5 x 9 pixels, mostly #1040e0")
    page.get_by_label("Add an image").set_input_files([picture, png("red.png", b"no picture")])
    expect(page.get_by_role("button", name="Remove red.png")).to_have_count(2)
    page.get_by_role("button", name="Remove red.png").last.click()
    expect(ask(page, "And again?").last).to_contain_text("31 x 17 pixels")


@pytest.mark.long
def test_a_second_name_of_a_model_that_sees_takes_pictures(page: Page) -> None:
    page.goto("/playground?model=spectacles")
    expect(page.get_by_label("Add an image")).to_have_count(1)
    paste(page, picture_bytes(5, 9, BLUE))
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.long
def test_a_model_that_does_not_see_is_given_no_picture(page: Page) -> None:
    page.goto("/playground?model=blind")
    expect(page.get_by_label("Add an image")).to_have_count(0)
    paste(page, picture_bytes(5, 9, BLUE))
    expect(page.get_by_role("alert")).to_contain_text("blind is not configured to see")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_role("button", name="Remove image.png").click()
    expect(page.get_by_role("alert")).to_have_count(0)
