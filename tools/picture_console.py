"""Write the README's pictures of the console: docs/images/console-{fleet,playground}-{light,dark}.png.

A real `remuda up` serves them. Its other machines are scripted: they register and send heartbeats, and
nothing runs on them. Run `uv run --group dev python -m tools.picture_console` after a change of these pages,
and look at what it has written.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Page, Route
from tests.integration.console.browser import Complaints, chromium, visit
from tests.integration.serving.asking import add_echo, chat
from tests.support.processes import TOKEN, Frontend, Json, ranch
from tests.support.waiting import wait_until_blocking

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs/images"
GIB: Final = 1 << 30
WIDTH: Final = 1360
HEIGHT: Final = 800
OWN: Final = "workshop"
# Name, vendor, GiB of GPU memory with what is free of it, of RAM, and of disk; labels.
MACHINES: Final = (
    ("attic-jetson", "nvidia", (0, 0), (62, 41), (458, 221), {"room": "attic"}),
    ("gaming-pc", "nvidia", (24, 6), (64, 38), (1863, 702), {"room": "study"}),
    ("mac-mini", "apple", (0, 0), (32, 19), (494, 187), {"room": "study"}),
    ("spark", "nvidia", (119, 71), (119, 71), (3726, 2980), {"room": "lab"}),
    ("cloud-l40s", "nvidia", (90, 55), (180, 133), (1024, 611), {"zone": "cloud"}),
)
# GPUs with memories of their own, of machines that have several: GiB, and what is free of it.
GPUS: Final = {"cloud-l40s": ((45, 12), (45, 43))}
BOOT: Final = "boot-1"
WAITING: Final = "old-laptop"
QUESTION: Final = "How do I see whether a model fits before I load it?"
ANSWER: Final = (
    "Ask the frontend: it answers with the reasons of its own placement.\n\n"
    "```console\n$ curl http://localhost:8080/api/models/qwen3-8b/fits\n```\n\n"
    "For each machine you get:\n\n"
    "- whether the model **fits** now\n"
    "- what would be *unloaded* first\n"
    "- if not, which limit is in the way, and what would change it\n"
)


def facts(name: str, vendor: str, vram: tuple[int, int], ram: tuple[int, int], disk: tuple[int, int]) -> Json:
    return {
        "name": name,
        "address": "127.0.0.1:50051",
        "token": TOKEN,
        "gpu_vendor": vendor,
        "total_vram": vram[0] * GIB,
        "available_vram": vram[1] * GIB,
        "total_ram": ram[0] * GIB,
        "available_ram": ram[1] * GIB,
        "total_disk": disk[0] * GIB,
        "available_disk": disk[1] * GIB,
    }


def join(frontend: Frontend) -> None:
    """All are approved but one."""
    for name, vendor, vram, ram, disk, labels in MACHINES:
        body = {**facts(name, vendor, vram, ram, disk), "labels": {**labels, "node.arch": "arm64"}}
        if name in GPUS:
            body["remuda"] = {"boot_id": BOOT}
        node = _registered(frontend, body)
        frontend.ask("POST", f"/api/nodes/{node}/approve").raise_for_status()
        frontend.ask("PATCH", f"/api/nodes/{node}/labels", labels).raise_for_status()
    _registered(frontend, facts(WAITING, "", (0, 0), (16, 9), (238, 90)))


def beat(frontend: Frontend) -> None:
    known = frontend.nodes()
    for name, _, vram, ram, disk, _ in MACHINES:
        figures: Json = {
            "available_vram": vram[1] * GIB,
            "available_ram": ram[1] * GIB,
            "available_disk": disk[1] * GIB,
        }
        if name in GPUS:
            figures["report"] = {"boot_id": BOOT, "sequence": 1, "gpus": gpus_of(name)}
        path = f"/api/node/{known[name]['id']}/heartbeat"
        frontend.ask("POST", path, figures, key=TOKEN).raise_for_status()


def gpus_of(name: str) -> list[Json]:
    return [
        {"index": index, "total_vram": total * GIB, "available_vram": free * GIB, "name": "NVIDIA L40S"}
        for index, (total, free) in enumerate(GPUS[name])
    ]


def _registered(frontend: Frontend, body: Json) -> str:
    answered = frontend.ask("POST", "/api/node/register", body, key=TOKEN).raise_for_status()
    return str(answered.json()["id"])


@contextmanager
def demo_fleet() -> Iterator[Frontend]:
    with tempfile.TemporaryDirectory() as folder, ranch(Path(folder) / "demo") as place:
        frontend = place.up(OWN, "--no-auto-approve")
        own = frontend.nodes()[OWN]
        if own["status"] == "pending":
            frontend.ask("POST", f"/api/nodes/{own['id']}/approve").raise_for_status()
        frontend.wait_for(OWN)
        add_echo(frontend, "qwen3-8b", "echo_token_rate:40")

        def loaded() -> bool:
            return chat(frontend, "qwen3-8b", "hello").is_success

        wait_until_blocking(loaded, within=60, what="a model that answers")
        join(frontend)
        beat(frontend)
        yield frontend


def show_fleet(page: Page) -> None:
    page.goto("/fleet")
    page.get_by_role("article").filter(has_text="spark").get_by_text("healthy").wait_for()


def answer_as_written(route: Route) -> None:
    """The model behind it repeats what it is asked, word by word, as a real one writes."""
    asked: Json = json.loads(route.request.post_data or "{}")
    asked["messages"][-1]["content"] = ANSWER
    route.continue_(post_data=json.dumps(asked))


def show_playground(page: Page) -> None:
    page.route("**/v1/chat/completions", answer_as_written)
    page.goto("/playground?model=qwen3-8b")
    page.get_by_role("textbox", name="Message").fill(QUESTION)
    page.keyboard.press("Enter")
    page.get_by_text("from workshop").wait_for()
    page.get_by_role("button", name="Again").wait_for()


VIEWS: Final[dict[str, Callable[[Page], None]]] = {"fleet": show_fleet, "playground": show_playground}
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    complaints = Complaints()
    with demo_fleet() as frontend, chromium() as browser:
        for view, show in VIEWS.items():
            for scheme in SCHEMES:
                with visit(browser, frontend.url, complaints) as page:
                    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
                    page.emulate_media(color_scheme=scheme)
                    beat(frontend)
                    show(page)
                    path = IMAGES / f"console-{view}-{scheme}.png"
                    page.screenshot(path=path)
                    print(f"{path.relative_to(IMAGES.parent.parent)}: {path.stat().st_size // 1000} kB")
    if complaints.found:
        raise SystemExit("\n".join(complaints.found))


if __name__ == "__main__":
    main()
