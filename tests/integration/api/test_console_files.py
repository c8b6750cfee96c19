"""The console's page and what it loads, as browsers get them."""

import gzip
import re

import pytest

from remuda.gateway.static_files import VIEWS
from tests.support.frontends import LiveFrontend

pytestmark = pytest.mark.anyio
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


ADDRESSES = ["/", "/nodes/some-id", "/somewhere/else", *(f"/{one}" for one in sorted(VIEWS))]


@pytest.mark.parametrize("path", ADDRESSES)
async def test_every_address_of_a_view_is_the_page(frontend: LiveFrontend, path: str) -> None:
    reply = await frontend.anyone.get(path, headers=BROWSER)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert reply.headers["cache-control"] == "no-cache"
    policy = reply.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    again = await frontend.anyone.get(path, headers={**BROWSER, "If-None-Match": reply.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/api/nothing", "/v1/nothing", "/api/ops/nothing/at/all"])
async def test_what_an_api_does_not_have_stays_json_for_browsers(frontend: LiveFrontend, path: str) -> None:
    reply = await frontend.anyone.get(path, headers=BROWSER)
    assert (reply.status_code, reply.headers["content-type"]) == (404, "application/json")


@pytest.mark.parametrize("path", ["/models", "/backends"])
async def test_programs_get_the_api_where_a_view_has_the_same_address(
    frontend: LiveFrontend, path: str
) -> None:
    reply = await frontend.anyone.get(path, headers={"Accept": "application/json"})
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")


async def test_programs_get_an_error_where_nothing_is(frontend: LiveFrontend) -> None:
    reply = await frontend.anyone.get("/somewhere/else")
    assert (reply.status_code, reply.headers["content-type"]) == (404, "application/json")


async def test_an_asset_that_is_not_there_is_an_error(frontend: LiveFrontend) -> None:
    reply = await frontend.anyone.get("/assets/of-yesterday.js", headers=BROWSER)
    assert reply.status_code == 404


async def test_what_a_page_loads_is_sent_as_it_was_packed(frontend: LiveFrontend) -> None:
    page = (await frontend.anyone.get("/", headers=BROWSER)).text
    script = re.findall(r'src="(/assets/[^"]+\.js)"', page)[0]
    plain = await frontend.anyone.get(script, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["cache-control"] == "public, max-age=31536000, immutable"
    for coding in ("gzip", "br"):
        asked = {"Accept-Encoding": coding}
        async with frontend.anyone.stream("GET", script, headers=asked) as reply:
            packed = b"".join([part async for part in reply.aiter_raw()])
        assert reply.headers["content-encoding"] == coding
        assert "accept-encoding" in reply.headers["vary"].lower()
        assert len(packed) == int(reply.headers["content-length"]) < len(plain.content)
        if coding == "gzip":
            assert gzip.decompress(packed) == plain.content
    refused = {"Accept-Encoding": "br;q=0, gzip;q=0"}
    assert "content-encoding" not in (await frontend.anyone.get(script, headers=refused)).headers


async def test_pages_are_counted_under_one_name_whatever_their_address(frontend: LiveFrontend) -> None:
    async def counted() -> float:
        lines = (await frontend.admin.get("/metrics")).text.splitlines()
        name = 'remuda_http_requests_total{method="GET",route="console",status="200"} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = await counted()
    for path in ("/nodes/some-id", "/models", "/somewhere/else"):
        assert (await frontend.anyone.get(path, headers=BROWSER)).status_code == 200
    assert await counted() == before + 3
