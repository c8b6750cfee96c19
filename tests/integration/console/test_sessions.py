"""Signing in and out, and what the console says while its frontend is away."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from remuda.host.ports import free_port
from tests.integration.console.browser import Complaints, visit
from tests.integration.serving.asking import add_echo
from tests.support.processes import Frontend, Ranch, ranch

RECOVERED_MS = 60_000


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranch]:
    with ranch(tmp_path_factory.mktemp("sessions") / "ranch") as made:
        yield made


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """One that others could reach, and that asks for keys therefore."""
    with ranch(tmp_path_factory.mktemp("keyed") / "ranch") as made:
        yield made.up("keyed", "--host", "0.0.0.0", "--public-url", "http://127.0.0.1")


def test_one_signs_in_with_a_key_and_out_again(
    keyed: Frontend, browser: Browser, complaints: Complaints
) -> None:
    made = keyed.ask("POST", "/api/keys", {"name": "ana", "scope": "admin"}).raise_for_status().json()
    complaints.expected += [(401, "/api/session"), (401, "/api/events")]
    with visit(browser, keyed.url, complaints) as page:
        page.goto("/fleet")
        expect(page).to_have_title("Sign in · Remuda")
        box = page.get_by_label("Admin or read-only key")
        box.fill("rmd_not-a-key")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("not an active API key")
        box.fill(made["key"])
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("1 of 1 machine healthy")).to_be_visible()
        cookies = page.context.cookies()
        assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
        other = page.context.new_page()
        complaints.follow(other)
        other.goto("/models")
        expect(other).to_have_title("Models · Remuda")
        page.get_by_role("link", name="Keys", exact=True).first.click()
        expect(page.get_by_role("cell", name="ana").first).to_be_visible()
        page.get_by_role("button", name="Sign out").first.click()
        for tab in (page, other):
            expect(tab).to_have_title("Sign in · Remuda")
        assert page.context.cookies() == []
        expect(page.get_by_text("Your session is over")).to_have_count(0)
        expect(other.get_by_text("Your session is over")).to_be_visible()
        box.fill(made["key"])
        page.get_by_role("button", name="Sign in").click()
        for tab in (page, other):
            expect(tab).not_to_have_title("Sign in · Remuda")


def test_a_key_for_programs_is_told_at_the_door(
    keyed: Frontend, browser: Browser, complaints: Complaints
) -> None:
    made = keyed.ask("POST", "/api/keys", {"name": "prog", "scope": "inference"}).raise_for_status().json()
    complaints.expected += [(403, "/api/session"), (401, "/api/events")]
    with visit(browser, keyed.url, complaints) as page:
        page.goto("/fleet")
        page.get_by_label("Admin or read-only key").fill(made["key"])
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("sign in with an admin or read-only key")
        expect(page).to_have_title("Sign in · Remuda")


def test_a_read_only_key_sees_the_fleet_and_can_change_nothing(
    keyed: Frontend, browser: Browser, complaints: Complaints
) -> None:
    made = keyed.ask("POST", "/api/keys", {"name": "eve", "scope": "read"}).raise_for_status().json()
    complaints.expected += [(401, "/api/session"), (401, "/api/events")]
    complaints.expected.append((403, "/api/nodes/.*/drain"))
    with visit(browser, keyed.url, complaints) as page:
        page.goto("/machines/keyed")
        page.get_by_label("Admin or read-only key").fill(made["key"])
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="keyed", exact=True)).to_be_visible()
        expect(page.get_by_text("eve (read only)").first).to_be_visible()
        expect(page.get_by_role("button", name="Drain")).to_have_count(0)
        page.goto("/models/gallery")
        expect(page.get_by_role("button", name="Install", exact=True).first).to_be_disabled()
        page.goto("/fleet?add=1")
        expect(page.get_by_text("1 of 1 machine healthy")).to_be_visible()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("button", name="Add a machine")).to_have_count(0)
        page.keyboard.press("Control+k")
        expect(page.get_by_role("option", name="Settings")).to_be_visible()
        expect(page.get_by_role("option").filter(has_text="action")).to_have_count(0)
        page.keyboard.press("Escape")
        add_echo(keyed, "echo")
        page.goto("/playground?model=echo")
        page.get_by_role("textbox", name="Message").fill("hello")
        expect(page.get_by_text("it may not use models")).to_be_visible()
        expect(page.get_by_role("button", name="Send")).to_be_disabled()
        refused = page.evaluate(
            "id => fetch(`/api/nodes/${id}/drain`, {method: 'POST', headers: {'X-Remuda-Console': '1'}})"
            ".then((answer) => answer.status)",
            keyed.nodes()["keyed"]["id"],
        )
        assert refused == 403


@pytest.mark.long
def test_a_machine_that_asks_to_join_is_approved_and_comes_to_work(
    place: Ranch, browser: Browser, complaints: Complaints
) -> None:
    frontend = place.up("up", "--no-auto-approve")
    with visit(browser, frontend.url, complaints) as page:
        page.goto("/fleet")
        worker = place.join(frontend.url, "newcomer")
        card = page.get_by_role("article").filter(has_text="newcomer")
        expect(card.get_by_text("waits for approval")).to_be_visible()
        expect(card).to_contain_text("waiting for approval")
        expect(card).not_to_contain_text("remuda nodes")
        item = page.get_by_role("listitem").filter(has_text="newcomer")
        item.get_by_role("button", name="Approve").click()
        expect(card.get_by_text("healthy")).to_be_visible(timeout=RECOVERED_MS)
        expect(item).to_have_count(0)
        assert worker.running


def test_a_lost_frontend_is_told_with_the_time_of_what_is_shown_and_found_again(
    place: Ranch, browser: Browser
) -> None:
    port = free_port("127.0.0.1")
    frontend = place.up("up", "--port", str(port))
    quiet = Complaints()  # The browser complains of every attempt, rightly.
    with visit(browser, frontend.url, quiet) as page:
        page.goto("/fleet")
        expect(page.get_by_text("1 of 1 machine healthy")).to_be_visible()
        frontend.kill()
        bar = page.get_by_role("alert")  # The only one: what a page cannot ask meanwhile adds none.
        expect(bar).to_contain_text(re.compile(r"Not connected for \d+ s"))
        expect(bar).to_contain_text(re.compile(r"What you see is from \d\d:\d\d:\d\d"))
        expect(page.get_by_role("link", name="up", exact=True)).to_be_visible()
        bar = bar.filter(has_text="Not connected")
        page.get_by_role("link", name="Settings").first.click()
        missing = page.get_by_text("The frontend does not answer.")
        expect(missing).to_be_visible()
        place.up("up", "--port", str(port))
        expect(bar).to_have_count(0, timeout=RECOVERED_MS)
        expect(missing).to_have_count(0)
        expect(page.get_by_text("registration_token", exact=True)).to_be_visible()
        page.get_by_role("link", name=re.compile("^Fleet")).first.click()
        expect(page.get_by_text("1 of 1 machine healthy")).to_be_visible()
    assert not [one for one in quiet.found if one.startswith("script")]


def test_a_chart_that_reaches_no_frontend_leaves_that_to_the_connection_bar(
    up: Frontend, browser: Browser
) -> None:
    quiet = Complaints()
    with visit(browser, up.url, quiet) as page:
        page.route("**/api/series", lambda route: route.abort())
        with page.expect_event("requestfailed", lambda one: one.url.endswith("/api/series")):
            page.goto("/fleet")
        expect(page.get_by_role("heading", name="Last hour")).to_be_visible()
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        expect(page.get_by_role("alert")).to_have_count(0)
    assert not [one for one in quiet.found if one.startswith("script")]


def test_tabs_share_one_connection_where_there_are_no_shared_workers(
    browser: Browser, up: Frontend, complaints: Complaints
) -> None:
    streams: list[str] = []
    with visit(browser, up.url, complaints) as first:
        first.context.add_init_script("delete window.SharedWorker")
        first.context.on("request", lambda one: streams.append(one.url) if "/api/events" in one.url else None)
        second = first.context.new_page()
        for page in (first, second):
            page.goto("/fleet")
            expect(page.get_by_text("1 of 1 machine healthy")).to_be_visible()
        assert len(streams) == 1
        first.close()  # The other takes over.
        second.wait_for_function("() => navigator.locks.query().then((all) => all.held.length === 1)")
        node = up.nodes()["up"]["id"]
        up.ask("PATCH", f"/api/nodes/{node}/labels", {"seen": "live"}).raise_for_status()
        expect(second.get_by_text("seen=live")).to_be_visible()
        assert len(streams) == 2
