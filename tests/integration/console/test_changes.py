"""What people change with the console and what it refuses to lose; what hostile machines write stays text."""

import json
import re

import httpx
from playwright.sync_api import Page, Route, expect

from tests.integration.console.browser import PATIENCE_MS, Complaints
from tests.integration.console.test_journeys import HOSTILE
from tests.integration.serving.asking import add_echo
from tests.support.processes import Frontend

expect.set_options(timeout=PATIENCE_MS)
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


def test_labels_and_the_replica_budget_are_saved(page: Page, up: Frontend) -> None:
    page.goto("/machines/up/settings")
    page.get_by_role("button", name="Label", exact=True).click()
    page.get_by_role("textbox", name="Label", exact=True).last.fill("room")
    page.get_by_role("textbox", name="Value of room").fill("attic")
    page.get_by_role("button", name="Save labels").click()
    expect(page.get_by_role("status").get_by_text("Labels saved")).to_be_visible()
    page.get_by_label("Replicas of one model, at most").fill("2")
    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page.get_by_text("Set by an admin.")).to_be_visible()
    node = up.nodes()["up"]
    assert (node["labels"]["room"], node["max_replicas_per_model"]) == ("attic", 2)
    up.ask("DELETE", f"/api/nodes/{node['id']}/max-replicas-per-model").raise_for_status()


def test_a_configuration_that_another_has_changed_is_shown_and_not_overwritten(
    page: Page, up: Frontend, complaints: Complaints
) -> None:
    add_echo(up, "shared-model")
    complaints.expected.append((409, "/api/models/shared-model/config"))
    page.goto("/models/shared-model/configuration")
    area = page.get_by_label("Configuration of shared-model")
    expect(area).to_have_value(re.compile("shared-model"))
    theirs = {"config": "name: shared-model\nbackend: echo\ndescription: theirs\n"}
    url = f"{up.url}/api/models/shared-model/config"
    httpx.put(url, json=theirs, headers={"If-Match": "*"}, trust_env=False).raise_for_status()
    area.fill("name: shared-model\nbackend: echo\ndescription: mine\n")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("It was changed meanwhile")).to_be_visible()
    expect(page.get_by_text("description: theirs")).to_be_visible()
    assert "theirs" in up.get("/api/models/shared-model/config")["config"]
    page.get_by_role("button", name="Overwrite with mine").click()
    expect(page.get_by_role("status").get_by_text("Saved")).to_be_visible()
    assert "mine" in up.get("/api/models/shared-model/config")["config"]


def test_several_machines_are_drained_at_once(page: Page, up: Frontend) -> None:
    names = ("barn-1", "barn-2")
    ids = [up.register(name)["id"] for name in names]
    page.goto("/fleet?view=table&find=barn")
    page.get_by_label("Choose all").check()
    page.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_role("row").get_by_text("drained")).to_have_count(len(names))
    for id in ids:
        up.ask("DELETE", f"/api/nodes/{id}").raise_for_status()


def test_a_picture_goes_to_the_model_with_the_question(page: Page, up: Frontend) -> None:
    add_echo(up, "seer", known_usecases=["vision", "chat"])
    asked: list[str] = []

    def keep(route: Route) -> None:
        asked.append(route.request.post_data or "")
        route.continue_()

    page.route("**/v1/chat/completions", keep)
    page.goto("/playground?model=seer")
    page.get_by_label("Add an image").set_input_files(
        {"name": "pixel.png", "mimeType": "image/png", "buffer": PIXEL}
    )
    page.get_by_role("textbox", name="Message").fill("what is it")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="seer").get_by_text("what is it")).to_be_visible()
    parts = json.loads(asked[0])["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url"]


def test_markup_in_errors_and_log_lines_is_text(page: Page, up: Frontend) -> None:
    add_echo(up, "trap", f"echo_load_fail:{HOSTILE}")
    op = up.ask("POST", "/api/models/trap/load").json()["id"]
    page.goto(f"/operations/{op}")
    expect(page.get_by_role("article").get_by_text("onerror").first).to_be_visible()
    line = json.dumps({"text": HOSTILE, "at": "2026-01-01T00:00:00Z", "stream": "stderr"})

    def follow(route: Route) -> None:
        if "follow=true" not in route.request.url:
            return route.fulfill(json=["trap"])
        return route.fulfill(content_type="text/event-stream", body=f"event: line\ndata: {line}\n\n")

    page.route(re.compile("/backend-logs"), follow)
    page.goto("/machines/up/logs")
    expect(page.get_by_text("onerror")).to_be_visible()
    expect(page.locator("img")).to_have_count(0)
    expect(page).to_have_title("up · Machine · Remuda")


def test_logs_follow_what_a_backend_writes(page: Page, up: Frontend) -> None:
    add_echo(up, "talker")
    page.goto("/machines/up/logs?of=talker")
    up.ask("POST", "/api/models/talker/load").raise_for_status()
    page.goto("/machines/up/logs?of=talker")
    expect(page.get_by_text("listening").first).to_be_visible()
    up.ask("POST", "/api/models/talker/unload").raise_for_status()
    expect(page.get_by_text("stopped").first).to_be_visible()  # Written while one looks.
