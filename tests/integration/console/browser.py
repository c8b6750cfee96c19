"""A real browser on the console: what it complains of is kept, and fails the test that looked away."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    sync_playwright,
)

from tests.support.debian import debian_program

PATIENCE_MS = 30_000


@dataclass
class Complaints:
    """Errors of scripts, messages of the console, and requests that failed."""

    found: list[str] = field(default_factory=list)
    expected: list[tuple[int, str]] = field(default_factory=list)
    """Statuses of answers that a test provokes, with a pattern of their path."""
    forgiven: list[str] = field(default_factory=list)
    """Patterns of other complaints that a test provokes."""

    def follow(self, page: Page) -> None:
        page.on("console", self._message)
        page.on("pageerror", lambda error: self.found.append(f"script: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def _message(self, message: ConsoleMessage) -> None:
        # Chromium writes one for each refusal; those are judged by their response.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.found.append(f"console: {message.text}")

    def _failed(self, request: Request) -> None:
        # A shared worker's script is asked for by each tab, and dropped when the worker runs already; a view
        # that is left gives up what it asked for. An answer of a model is read to its end.
        if request.failure != "net::ERR_ABORTED" or "/v1/" in request.url:
            told = f"request: {request.method} {request.url}: {request.failure}"
            if not any(re.fullmatch(pattern, told) for pattern in self.forgiven):
                self.found.append(told)

    def _answered(self, response: Response) -> None:
        path = "/" + response.url.split("/", 3)[-1]
        if response.status >= 400 and not any(
            response.status == status and re.fullmatch(pattern, path) for status, pattern in self.expected
        ):
            self.found.append(f"response: {response.status} {response.request.method} {path}")


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        program = debian_program("chromium", "chromium")
        # In a container there is no user namespace for its sandbox; it only opens pages of ours.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(browser: Browser, url: str, complaints: Complaints) -> Iterator[Page]:
    """A page of a profile of its own: no cookie, no worker."""
    context: BrowserContext = browser.new_context(base_url=url, viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    try:
        page = context.new_page()
        complaints.follow(page)
        yield page
    finally:
        context.close()
