"""What the pages of machines and models say of several GPUs, and of what others declare meanwhile."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.integration.console.browser import PATIENCE_MS
from tests.integration.serving.asking import add_echo
from tests.support.processes import TOKEN, Frontend, Json

expect.set_options(timeout=PATIENCE_MS)
GIB = 1 << 30
BOOT = "boot-1"


@pytest.fixture
def two_gpus(up: Frontend) -> Iterator[str]:
    """A scripted machine of two GPUs, one of them nearly full."""
    body: Json = {
        "name": "rig",
        "address": "127.0.0.1:50051",
        "token": TOKEN,
        "gpu_vendor": "nvidia",
        "total_vram": 48 * GIB,
        "available_vram": 21 * GIB,
        "remuda": {"version": "0.2.0", "boot_id": BOOT},
    }
    node = up.ask("POST", "/api/node/register", body, key=TOKEN).raise_for_status().json()["id"]
    free = {0: 20 * GIB, 1: 1 * GIB}
    gpus = [
        {"index": index, "total_vram": 24 * GIB, "available_vram": left, "name": "RTX 3090"}
        for index, left in free.items()
    ]
    beat = {"report": {"boot_id": BOOT, "sequence": 1, "gpus": gpus}}
    up.ask("POST", f"/api/node/{node}/heartbeat", beat, key=TOKEN).raise_for_status()
    yield str(node)
    up.ask("DELETE", f"/api/nodes/{node}").raise_for_status()


def test_each_gpu_of_a_machine_is_shown_with_its_memory(page: Page, two_gpus: str) -> None:
    page.goto("/fleet")
    card = page.get_by_role("article").filter(has_text="rig")
    expect(card).to_contain_text("2 nvidia GPUs")
    expect(card.get_by_role("meter", name="GPU 1 · RTX 3090")).to_have_attribute(
        "aria-valuetext", "GPU 1 · RTX 3090: 23.0 GiB of 24.0 GiB used"
    )
    page.goto("/fleet?view=table")
    expect(page.get_by_role("row").filter(has_text="rig")).to_contain_text("2 GPUs 48.0 GiB")
    page.goto("/machines/rig")
    gpus = page.get_by_role("list", name="GPUs").get_by_role("listitem")
    expect(gpus).to_have_count(2)
    expect(gpus.first).to_contain_text("4.0 GiB of 24.0 GiB used")
    expect(gpus.last).to_contain_text("23.0 GiB of 24.0 GiB used")
    expect(gpus.last).to_contain_text("no model of the fleet")


@pytest.mark.long
def test_what_another_declares_appears_in_the_table_of_models(page: Page, up: Frontend) -> None:
    add_echo(up, "counted")
    page.goto("/models")
    row = page.get_by_role("row").filter(has_text="counted")
    expect(row).to_contain_text("while used")
    for declared, shown in (
        ({"max_replicas": 3}, "up to 3"),
        ({"spread_all": True, "node_selector": {"room": "nowhere"}}, "all with room=nowhere"),
    ):
        body = {"model_name": "counted", **declared}
        up.ask("POST", "/api/nodes/scheduling", body).raise_for_status()
        expect(row).to_contain_text(shown)
    up.ask("DELETE", "/api/nodes/scheduling/counted").raise_for_status()
    expect(row).to_contain_text("while used")
