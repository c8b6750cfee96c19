"""A model's file from the browser: cut off, continued, and what becomes of it shown where it was sent."""

import re

from playwright.sync_api import FilePayload, Page, Route, expect

from tests.integration.console.browser import PATIENCE_MS, Complaints
from tests.support.models import tiny_model
from tests.support.processes import Frontend
from tests.support.waiting import wait_until_blocking

expect.set_options(timeout=PATIENCE_MS)
KEPT_BYTES = 1000
SLOW_MS = 30_000


def payload(name: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


def test_an_upload_that_is_cut_goes_on_where_it_was_and_its_install_is_shown(
    page: Page, up: Frontend, complaints: Complaints
) -> None:
    content = tiny_model().read_bytes()
    file = payload("from-browser.gguf", content)
    offsets: list[str] = []

    def cut(route: Route) -> None:
        """The first part ends after some bytes, as when a network goes away; the frontend has those."""
        offsets.append(route.request.headers["upload-offset"])
        if len(offsets) > 1:
            return route.continue_()
        route.fetch(post_data=content[:KEPT_BYTES])
        return route.abort("connectionreset")

    complaints.forgiven.append(r"request: PATCH .*/api/model-uploads/.* net::ERR_CONNECTION_RESET")
    page.route(re.compile("/api/model-uploads/"), cut)
    page.goto("/models/import")
    page.get_by_role("region", name="Upload").locator("input[type=file]").set_input_files(files=[file])
    card = page.get_by_role("article").filter(has_text="from-browser")
    expect(card.get_by_text("done", exact=True).first).to_be_visible(timeout=SLOW_MS)
    assert offsets == ["0", str(KEPT_BYTES)]
    page.get_by_role("link", name="Installed").click()
    expect(page.get_by_role("link", name="from-browser", exact=True)).to_be_visible()
    assert up.get("/api/model-uploads")["uploads"] == []


def test_a_cancelled_upload_leaves_nothing_behind(page: Page, up: Frontend) -> None:
    file = payload("dropped.gguf", b"GGUF" + bytes(5000))
    held: list[Route] = []
    page.route(
        re.compile("/api/model-uploads/"),
        lambda route: held.append(route) if route.request.method == "PATCH" else route.continue_(),
    )
    page.goto("/models/import")
    with page.expect_request(lambda asked: asked.method == "PATCH"):
        page.get_by_role("region", name="Upload").locator("input[type=file]").set_input_files(files=[file])
    page.get_by_role("button", name="Pause").click()
    assert len(up.get("/api/model-uploads")["uploads"]) == 1
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Choose a GGUF file")).to_be_visible()

    def gone() -> bool:
        return bool(up.get("/api/model-uploads")["uploads"] == [])

    wait_until_blocking(gone, within=15, what="the frontend to drop the upload")
