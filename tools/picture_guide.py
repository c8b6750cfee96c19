"""Write the guide's pictures of the console: docs/images/guide-*-{light,dark}.png.

They are of the README's demo fleet (tools.picture_console), but for the operation and what needs attention,
of which a scripted API tells. Run `uv run --group dev python -m tools.picture_guide` after a change of these
pages, and look at what it has written.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from anyio.from_thread import start_blocking_portal
from bench.console_page import GIB, Fleet, scripted_api
from playwright.sync_api import Browser, Locator, Page
from tests.integration.console.browser import Complaints, chromium, visit
from tests.support.processes import Frontend

from tools.picture_console import IMAGES, SCHEMES, beat, demo_fleet

Show = Callable[[Page], Locator | None]
"""What to take of a page that it has brought there; None: all that is seen of it."""
WIDTH: Final = 1100
HEIGHT: Final = 720
MODEL: Final = "qwen3-8b"
JOIN: Final = "curl -fsSL http://192.168.1.10:8080/join.sh | sh -s -- --token rmt_8wq0x6c2u1"
LINES: Final = {"url": "http://192.168.1.10:8080", "line": JOIN, "uvx_line": ""}


def gallery(page: Page) -> None:
    page.goto("/models/gallery")
    page.get_by_role("button", name="Details").first.wait_for()


def add_machine(page: Page) -> Locator:
    page.route("**/api/join-line?*", lambda route: route.fulfill(json=LINES))
    page.goto("/fleet?add=1")
    page.get_by_role("dialog").get_by_text("join.sh").wait_for()
    return page.get_by_role("dialog")


def machine(page: Page) -> None:
    page.goto("/machines/cloud-l40s")
    page.locator(".uplot").first.wait_for()


def model(page: Page) -> None:
    page.goto(f"/models/{MODEL}")
    page.get_by_role("region", name="The next load").get_by_text("Why not elsewhere").wait_for()
    page.get_by_role("region", name="Wanted replicas").get_by_text("There are").wait_for()
    page.get_by_role("region", name="Will it fit").get_by_text("loaded there").wait_for()
    page.get_by_text("Files on").wait_for()


def backends(page: Page) -> None:
    page.goto("/backends")
    page.get_by_text("can run on", exact=False).first.wait_for()


VIEWS: Final[dict[str, Show]] = {
    "gallery": gallery,
    "add-machine": add_machine,
    "machine": machine,
    "model": model,
    "backends": backends,
}


class Installing(Fleet):
    """One backend on its way to five machines, each at another point."""

    def node(self, number: int) -> dict[str, Any]:
        return {**super().node(number), "name": NAMES[number]}

    def attention(self) -> list[dict[str, Any]]:
        return [
            _needed(3, "problem", "node_offline", "mac-mini is offline: not heard for 14 minutes"),
            _needed(4, "problem", "operation_failed", "install llama-cpp failed on attic-jetson", "Retry"),
            _needed(5, "warning", "node_pending", "old-laptop waits for approval", "Approve"),
        ]

    def operation(self, number: int) -> dict[str, Any]:
        steps = [
            _step(0, "succeeded", version="1.14.2"),
            _step(1, "running", progress=_bytes("blobs/sha256-6f0c", 2.1, 3.4, 61, 88e6, 15)),
            _step(2, "running", progress=_bytes("blobs/sha256-9a41", 0.7, 3.4, 20, 31e6, 87)),
            _step(3, "pending", reason="the machine is offline"),
            _step(4, "failed", problem=NO_ROOM),
        ]
        return {
            "id": "op-7c2f",
            "kind": "install",
            "status": "running",
            "backend": "llama-cpp",
            "percentage": 54,
            "counts": {"succeeded": 1, "running": 2, "pending": 1, "failed": 1},
            "asked_at": f"{datetime.now(UTC) - timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}",
            "asked_by": "admin",
            "steps": steps,
            "whole": True,
        }


NAMES: Final = ("workshop", "spark", "gaming-pc", "mac-mini", "attic-jetson")
NO_ROOM: Final = {
    "code": "disk_full",
    "message": "the disk has 1.2 GiB left, 3.4 GiB are needed",
    "hint": "free some space there, and retry",
}


def _needed(number: int, level: str, code: str, message: str, remedy: str = "") -> dict[str, Any]:
    item = {"id": f"need-{number}", "code": code, "level": level, "message": message}
    about = {"entity": "node", "entity_id": f"node-{number}"}
    action = {"action": {"label": remedy, "method": "POST", "path": "/api"}} if remedy else {}
    return {**item, **about, **action}


def _step(number: int, state: str, **more: Any) -> dict[str, Any]:
    return {"node_id": f"node-{number}", "node_name": NAMES[number], "state": state, **more}


def _bytes(file: str, have: float, whole: float, percentage: int, rate: float, left_s: int) -> dict[str, Any]:
    return {
        "phase": "downloading",
        "file_name": file,
        "current_bytes": int(have * GIB),
        "total_bytes": int(whole * GIB),
        "percentage": percentage,
        "rate_bytes_s": rate,
        "left_s": left_s,
    }


def attention(page: Page) -> Locator:
    page.goto("/fleet")
    return page.get_by_role("region", name="Needs attention")


def operation(page: Page) -> Locator:
    page.goto("/operations")
    card = page.get_by_role("article").filter(has_text="llama-cpp").first
    closed = card.get_by_role("button", expanded=False)
    if closed.count():
        closed.click()
    card.get_by_role("listitem").first.wait_for()
    return card


def take(browser: Browser, url: str, name: str, show: Show) -> list[Path]:
    """One picture in each scheme."""
    taken = []
    for scheme in SCHEMES:
        with visit(browser, url, Complaints()) as page:
            page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            taken.append(IMAGES / f"guide-{name}-{scheme}.png")
            (show(page) or page).screenshot(path=taken[-1])
            print(f"{taken[-1].name}: {taken[-1].stat().st_size // 1000} kB")
    return taken


def pictures_of(frontend: Frontend, browser: Browser) -> None:
    for name, show in VIEWS.items():
        beat(frontend)
        take(browser, frontend.url, name, show)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with chromium() as browser:
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(scripted_api(Installing(len(NAMES), 1))) as url,
        ):
            take(browser, url, "operation", operation)
            take(browser, url, "attention", attention)
        with demo_fleet() as frontend:
            pictures_of(frontend, browser)


if __name__ == "__main__":
    main()
