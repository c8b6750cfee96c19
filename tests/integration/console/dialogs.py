"""Every dialog of the console: where it is, and what opens it. Each is opened by the keyboard alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from playwright.sync_api import Locator, Page, expect

Find = Callable[[Page], Locator]


@dataclass(frozen=True)
class Opened:
    """`way`: what is found one after the other, and pressed; what is pressed last has the focus back in the
    end, or, in a menu, the button of the menu."""

    name: str
    path: str
    title: str
    way: tuple[Find, ...]

    def open(self, page: Page) -> Locator:
        """What should have the focus when it is closed."""
        *menus, last = (find(page) for find in self.way)
        for menu in menus:
            menu.press("Enter")
            # A menu moves the focus to its first item when it has opened.
            expect(menu).to_have_attribute("aria-expanded", "true")
        last.press("Enter")
        return self.way[0](page)


def button(name: str) -> Find:
    return lambda page: page.get_by_role("button", name=name, exact=True).first


def in_row(row: str, name: str) -> Find:
    return lambda page: page.get_by_role("row").filter(has_text=row).get_by_role("button", name=name)


def in_region(region: str, name: str) -> Find:
    return lambda page: page.get_by_role("region", name=region).get_by_role("button", name=name)


def in_card(card: str, name: str) -> Find:
    return lambda page: page.get_by_role("article", name=card).get_by_role("button", name=name)


KEY: Final = "dialogs-key"
"""A key that there must be."""
SERVER: Final = "dialogs-server"
"""Likewise, a server."""

DIALOGS: Final = (
    Opened("add-machine", "/fleet", "Add a machine", (button("Add a machine"),)),
    Opened("drain", "/machines/up", "Drain up", (button("Drain"),)),
    Opened(
        "install-here",
        "/machines/up",
        "Install",
        (button("More about up"), button("Install a backend")),
    ),
    Opened("replicas", "/models/echo", "Replicas of echo", (in_region("Wanted replicas", "Change"),)),
    Opened("remove-model", "/models/echo", "Remove echo", (button("More about echo"), button("Remove"))),
    Opened("unload", "/models", "Unload echo", (in_row("echo", "Unload"),)),
    Opened("scan", "/servers", "Look for", (button("Look for some"),)),
    Opened("server", "/servers", "Add a server", (button("Add a server"),)),
    Opened("edit-server", "/servers", f"The server {SERVER}", (in_card(SERVER, "Edit"),)),
    Opened(
        "remove-server",
        "/servers",
        f"Remove {SERVER}",
        (button(f"More about {SERVER}"), button("Remove")),
    ),
    Opened("key", "/keys", "Create a key", (button("Create a key"),)),
    Opened("key-limits", "/keys", f"What {KEY} may take", (in_row(KEY, "Edit"),)),
    Opened("usage", "/keys", f"What {KEY} has taken", (button(f"More about {KEY}"), button("Usage"))),
    Opened("revoke", "/keys", f"Revoke {KEY}", (button(f"More about {KEY}"), button("Revoke"))),
    Opened("gallery-model", "/models/gallery", "", (button("Details"),)),
    Opened("gallery-backend", "/backends", "", (lambda page: page.locator("button.open").first,)),
)
