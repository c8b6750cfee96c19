"""axe-core on every page, in light and dark: no serious violation."""

from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, expect
from tools.build_console import SOURCE, install_packages

from tests.integration.console.browser import PATIENCE_MS, Complaints, visit
from tests.support.processes import Frontend

PAGES = (
    "/fleet",
    "/fleet?view=table",
    "/fleet?add=1",
    "/machines/up",
    "/machines/up/settings",
    "/operations",
    "/backends",
    "/models",
    "/models/gallery",
    "/models/import",
    "/models/echo",
    "/models/echo/configuration",
    "/playground",
    "/servers",
    "/servers?add=1",
    "/keys?create=1",
    "/settings",
)
SERIOUS = ("serious", "critical")
# axe runs beside the page: its policy forbids scripts that it has not brought itself.
RUN = "() => axe.run(document, {resultTypes: ['violations']})"


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_violation(
    browser: Browser, up: Frontend, complaints: Complaints, scheme: Literal["light", "dark"]
) -> None:
    install_packages()
    axe = (SOURCE / "node_modules/axe-core/axe.min.js").read_text()
    found: dict[str, list[str]] = {}
    with visit(browser, up.url, complaints) as page:
        page.emulate_media(color_scheme=scheme)
        for path in PAGES:
            page.goto(path)
            expect(page.locator("h1").first).to_be_visible(timeout=PATIENCE_MS)
            page.wait_for_load_state("load")
            page.evaluate(axe)
            result: Any = page.evaluate(RUN)
            found[path] = [
                f"{one['id']}: {node['html'][:160]}"
                for one in result["violations"]
                if one["impact"] in SERIOUS
                for node in one["nodes"]
            ]
    assert {path: told for path, told in found.items() if told} == {}
