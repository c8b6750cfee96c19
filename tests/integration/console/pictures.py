"""Screenshots of a run: each view as people may see it, light and dark, at a desk and on a phone."""

from pathlib import Path
from typing import Final, Literal

import pytest
from playwright.sync_api import Page

SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
SIZES: Final = {"desktop": (1440, 900), "phone": (390, 844)}


class Album:
    """Kept in a folder of the run, which is printed when it is full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def take(self, page: Page, title: str) -> None:
        """The page stays as it is: neither reloaded nor moved."""
        self._count += 1
        before = page.viewport_size
        for size, (width, height) in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                page.screenshot(path=self.folder / f"{self._count:02}-{title}-{size}-{scheme}.png")
        page.emulate_media(color_scheme="light")
        if before is not None:
            page.set_viewport_size(before)


def say_where(album: Album, config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"\nscreenshots: {album.folder}")
