"""What people change with the console and what it refuses to lose; what hostile machines write stays text."""

import json
import re

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.integration.console.browser import PATIENCE_MS, Complaints
from tests.integration.console.test_journeys import HOSTILE
from tests.integration.serving.asking import add_echo, chat, said
from tests.support.processes import Frontend

pytestmark = pytest.mark.long

expect.set_options(timeout=PATIENCE_MS)
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


ECHO = "name: {0}\nbackend: echo\nparameters:\n  model: {0}\n"


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


def test_saving_says_what_it_unloads_and_refuses_what_is_wrong_before_that(
    page: Page, up: Frontend, complaints: Complaints
) -> None:
    up.ask("POST", "/api/models", {"config": ECHO.format("laden")}).raise_for_status()
    assert said(chat(up, "laden"))
    complaints.expected.append((400, "/api/models/laden/config"))
    page.goto("/models/laden/configuration")
    area = page.get_by_label("Configuration of laden")
    expect(area).to_have_value(re.compile("laden"))
    text = area.input_value()
    save = page.get_by_role("button", name="Save", exact=True)
    area.fill(text + "threads: many\n")
    save.click()
    expect(page.get_by_role("alert")).to_contain_text("threads: must be a whole number, not 'many'")
    expect(page.get_by_role("button", name="To line")).to_be_visible()
    area.fill(text + "threads: 2\n")
    save.click()
    question = page.get_by_role("dialog", name="Save and unload laden?")
    expect(question.get_by_text("the replica on up")).to_be_visible()
    question.get_by_role("button", name="Keep editing").click()
    assert up.get("/api/models/laden/config")["config"] == text
    save.click()
    question.get_by_role("button", name="Save and unload").click()
    expect(page.get_by_role("status").get_by_text("what was loaded is unloaded")).to_be_visible()
    assert "threads: 2" in up.get("/api/models/laden/config")["config"]


def test_a_configuration_that_is_open_follows_what_another_saves(page: Page, up: Frontend) -> None:
    up.ask("POST", "/api/models", {"config": ECHO.format("followed")}).raise_for_status()
    page.goto("/models/followed/configuration")
    area = page.get_by_label("Configuration of followed")
    expect(area).to_have_value(re.compile("followed"))
    config, url = area.input_value(), f"{up.url}/api/models/followed/config"
    more = {"config": config + "threads: 2\n"}
    httpx.put(url, json=more, headers={"If-Match": "*"}, trust_env=False).raise_for_status()
    expect(area).to_have_value(re.compile("threads: 2"))
    area.fill(config + "threads: 3\n")
    more = {"config": config + "threads: 4\n"}
    httpx.put(url, json=more, headers={"If-Match": "*"}, trust_env=False).raise_for_status()
    expect(page.get_by_role("alert")).to_contain_text("It was changed meanwhile")
    expect(area).to_have_value(re.compile("threads: 3"))
    page.get_by_role("button", name="Take theirs").click()
    expect(area).to_have_value(re.compile("threads: 4"))


def test_several_machines_are_drained_at_once(page: Page, up: Frontend) -> None:
    names = ("barn-1", "barn-2")
    ids = [up.register(name)["id"] for name in names]
    page.goto("/fleet?view=table&find=barn")
    page.get_by_label("Choose all").check()
    page.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_role("row").get_by_text("drained")).to_have_count(len(names))
    expect(page.get_by_title(re.compile("drained by an admin"))).to_have_count(len(names))
    expect(page.get_by_title(re.compile("remuda nodes"))).to_have_count(0)  # A button is there for it.
    for id in ids:
        up.ask("DELETE", f"/api/nodes/{id}").raise_for_status()


def test_what_a_filter_hides_is_not_changed_with_what_is_chosen(page: Page, up: Frontend) -> None:
    ids = {name: up.register(name)["id"] for name in ("stall-1", "stall-2")}
    page.goto("/fleet?view=table&find=stall")
    page.get_by_label("Choose all").check()
    bar = page.get_by_role("region", name="Chosen machines")
    expect(bar).to_contain_text("2 machines chosen")
    page.get_by_role("searchbox", name="Name, address or label=value").fill("stall-1")
    expect(bar).to_contain_text("1 machine chosen")
    expect(bar).to_contain_text("1 more is hidden")
    page.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_role("dialog", name="Drain stall-1?").get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_role("row").get_by_text("drained")).to_have_count(1)
    page.get_by_role("searchbox", name="Name, address or label=value").fill("no such machine")
    expect(bar).to_have_count(0)
    nodes = up.nodes()
    assert [nodes[name]["status"] == "draining" for name in ids] == [True, False]
    for id in ids.values():
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
