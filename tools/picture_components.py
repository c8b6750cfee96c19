"""Write the pictures of ui/README.md: each component of the console as it is, light and dark.

They are of the same demo fleet as the README's (tools.picture_console). Run `uv run --group dev python -m
tools.picture_components` after a change of how they look, and look at what it has written.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser, Locator, Page
from tests.integration.console.browser import Complaints, chromium, visit
from tests.integration.serving.asking import add_echo
from tests.support.processes import Frontend

from tools.picture_console import SCHEMES, beat, demo_fleet, show_fleet, show_playground

PICTURES: Final = Path(__file__).resolve().parent.parent / "ui/pictures"
WIDTH: Final = 1100
HEIGHT: Final = 760
LOADED: Final = "qwen3-8b"
SLOW: Final = "slow-starter"
FAILING: Final = "out-of-memory"


def machine_card(page: Page) -> Locator:
    show_fleet(page)
    return page.get_by_role("article").filter(has_text="gaming-pc")


def gpus(page: Page) -> Locator:
    page.goto("/machines/cloud-l40s")
    page.get_by_role("list", name="GPUs").wait_for()
    return page.get_by_role("region", name="Resources")


def attention(page: Page) -> Locator:
    show_fleet(page)
    return page.get_by_role("region", name="Needs attention")


def charts(page: Page) -> Locator:
    show_fleet(page)
    page.locator(".uplot").first.wait_for()
    return page.get_by_role("region", name="Last hour")


def machine_table(page: Page) -> Locator:
    page.goto("/fleet?view=table")
    page.get_by_role("row").filter(has_text="spark").get_by_text("healthy").wait_for()
    return page.locator(".table-box")


def filters(page: Page) -> Locator:
    show_fleet(page)
    return page.get_by_role("region", name="Machines").locator(".row").first


def buttons(page: Page) -> Locator:
    page.goto(f"/models/{LOADED}")
    page.get_by_role("button", name="Load once more").wait_for()
    return page.locator(".head")


def tabs(page: Page) -> Locator:
    page.goto("/machines/spark")
    return page.get_by_role("navigation", name="Of this machine")


def operation(page: Page) -> Locator:
    page.goto("/operations")
    card = page.get_by_role("article").filter(has_text=FAILING).first
    card.get_by_role("button", expanded=False).click()
    card.get_by_role("listitem").first.wait_for()
    return card


def strip(page: Page) -> Locator:
    page.goto(f"/models/{SLOW}")
    page.get_by_role("button", name="Load", exact=True).click()
    shown = page.get_by_role("link", name=f"Loading {SLOW}")
    shown.wait_for()
    return shown


def problem(page: Page) -> Locator:
    page.goto("/models/import")
    page.get_by_label("YAML").fill("name: qwen3-8b\nbackend: llama-cpp\ncontext_size: many\n")
    page.get_by_role("button", name="Add the model").click()
    return page.get_by_role("alert")


def question(page: Page) -> Locator:
    page.goto(f"/models/{LOADED}")
    page.get_by_role("button", name=f"More about {LOADED}").click()
    page.get_by_role("button", name="Remove").click()
    return page.get_by_role("dialog")


def menu(page: Page) -> Locator:
    page.goto(f"/models/{LOADED}")
    page.get_by_role("button", name=f"More about {LOADED}").click()
    return page.locator(".menu")


def form(page: Page) -> Locator:
    page.goto("/keys?create=1")
    return page.get_by_role("dialog")


def palette(page: Page) -> Locator:
    show_fleet(page)
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Find or do").fill("spark")
    return page.get_by_role("dialog")


def empty(page: Page) -> Locator:
    page.goto("/servers")
    page.get_by_role("heading", name="No server yet").wait_for()
    return page.locator(".empty")


def answer(page: Page) -> Locator:
    show_playground(page)
    return page.get_by_role("article", name=LOADED)


# First those of the whole fleet: its scripted machines do not listen on the bus, which is noticed later.
COMPONENTS: Final[dict[str, Callable[[Page], Locator]]] = {
    "machine-card": machine_card,
    "gpus": gpus,
    "machine-table": machine_table,
    "filters": filters,
    "palette": palette,
    "charts": charts,
    "attention": attention,
    "buttons": buttons,
    "tabs": tabs,
    "menu": menu,
    "operation": operation,
    "strip": strip,
    "problem": problem,
    "question": question,
    "form": form,
    "empty": empty,
    "answer": answer,
}


def prepare(frontend: Frontend) -> None:
    add_echo(frontend, SLOW, "echo_load_delay_ms:20000")
    add_echo(frontend, FAILING, "echo_load_fail:the GPU has 2.1 GiB left, 5.6 GiB are needed")
    frontend.ask("POST", f"/api/models/{FAILING}/load").raise_for_status()


def take(browser: Browser, scheme: Literal["light", "dark"], complaints: Complaints) -> None:
    with demo_fleet() as frontend:
        prepare(frontend)
        for name, show in COMPONENTS.items():
            with visit(browser, frontend.url, complaints) as page:
                page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                beat(frontend)
                path = PICTURES / f"{name}-{scheme}.png"
                show(page).screenshot(path=path)
                print(f"{path.name}: {path.stat().st_size // 1000} kB")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    complaints = Complaints(expected=[(400, "/api/models")])
    with chromium() as browser:
        for scheme in SCHEMES:
            take(browser, scheme, complaints)
    if complaints.found:
        raise SystemExit("\n".join(complaints.found))


if __name__ == "__main__":
    main()
