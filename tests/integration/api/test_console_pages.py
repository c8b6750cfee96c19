"""What pages of the console ask for: settings, and where a model fits."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from remuda.model_installs import fit_preview
from tests.integration.api.ops_frontends import our_node
from tests.support.frontends import LiveFrontend, live_frontend
from tests.support.hub import HubServer, hub_server

pytestmark = pytest.mark.anyio


async def test_settings_are_shown_without_secrets(open_frontend: LiveFrontend) -> None:
    shown = (await open_frontend.admin.get("/api/settings")).json()
    by_name = {one["setting"]: one for one in shown["settings"]}
    assert by_name["host"]["value"] == "0.0.0.0"
    assert by_name["host"]["help"]
    assert by_name["registration_token"]["value"] in ("set", "not set")
    assert open_frontend.token not in str(shown)


async def test_why_a_model_fits_nowhere_is_said_for_each_node(frontend: LiveFrontend) -> None:
    config = "name: fitting\nbackend: nosuch\nparameters: {model: fitting}\n"
    await frontend.admin.post("/api/models", json={"config": config})
    node = await frontend.register("too-small")
    shown = (await frontend.admin.get("/api/models/fitting/fits")).json()
    (fit,) = [one for one in shown["nodes"] if one["node_id"] == node["id"]]
    assert fit["fits"] is False
    assert fit["outcome"] == "unusable"
    assert fit["reason"]
    assert (await frontend.admin.get("/api/models/nosuch/fits")).status_code == 404


async def test_what_a_load_would_do_is_planned_without_doing_it(frontend: LiveFrontend) -> None:
    config = "name: planned\nbackend: nosuch\nparameters: {model: planned}\n"
    await frontend.admin.post("/api/models", json={"config": config})
    await frontend.register("too-small")
    shown = (await frontend.admin.get("/api/models/planned/plan")).json()
    assert (shown["model"], shown["node"], shown["steps"]) == ("planned", "", [])
    assert "too-small" in [name for one in shown["not_chosen"] for name in one["nodes"]]
    assert (await frontend.admin.get("/api/models/nosuch/plan")).status_code == 404


MIB = 1 << 20
ECHO = {"name": "echo", "digest": "sha256:" + "e" * 64}
GALLERY = """\
- name: sized
  backend: echo
  config_file: {{backend: echo}}
  files: [{{filename: sized.bin, uri: "{file}"}}]
"""


@pytest.fixture
async def hub() -> AsyncIterator[HubServer]:
    async with hub_server() as server:
        yield server


@pytest.fixture
async def offering(hub: HubServer, tmp_path: Path) -> AsyncIterator[LiveFrontend]:
    """A frontend whose gallery has a model of 8 MiB."""
    index = tmp_path / "index.yaml"
    index.write_text(GALLERY.format(file=hub.add("/sized.bin", bytes(8 * MIB))))
    galleries = [{"name": "here", "url": f"file://{index}"}]
    shipped = [{"name": "remuda", "url": "builtin:gallery"}]
    folder = tmp_path / "frontend"
    async with live_frontend(folder, model_galleries=galleries, backend_galleries=shipped) as frontend:
        yield frontend


async def with_memory(frontend: LiveFrontend, name: str, total: int) -> None:
    """A node that can serve the model and fetch its files."""
    node = await our_node(frontend, name, total_ram=total, available_ram=total)
    report = {"boot_id": "boot-1", "sequence": 2, "installed": [ECHO], "fetches_files": True}
    await frontend.heartbeat(node["id"], report=report)


async def fits_of(frontend: LiveFrontend, model: str = "sized") -> dict[str, Any]:
    answer = await frontend.admin.get(f"/api/galleries/models/{model}/fits")
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown | {"nodes": {one["node"]: one for one in shown["nodes"]}}


async def test_before_an_install_placement_says_where_the_model_would_fit(
    offering: LiveFrontend, hub: HubServer
) -> None:
    await with_memory(offering, "small", 4 * MIB)
    await with_memory(offering, "large", 4096 * MIB)
    shown = await fits_of(offering)
    assert shown["size_bytes"] == 8 * MIB
    assert shown["nodes"]["large"]["fits"], shown
    assert not shown["nodes"]["small"]["fits"]
    assert "4 MiB available" in shown["nodes"]["small"]["reason"]
    asked = len(hub.requests)
    assert await fits_of(offering) == shown
    assert len(hub.requests) == asked, "a source is not asked at each look"
    assert hub.bytes_sent < MIB, "sizes alone are asked for"
    assert (await offering.admin.get("/api/galleries/models/nosuch/fits")).status_code == 404


async def test_a_size_that_is_not_told_is_no_promise(offering: LiveFrontend, hub: HubServer) -> None:
    await with_memory(offering, "large", 4096 * MIB)
    hub.files.clear()
    shown = await fits_of(offering)
    assert shown["size_unknown"]
    assert not shown["nodes"]["large"]["fits"]
    assert shown["nodes"]["large"]["reason"].startswith("size not known yet: ")


async def test_a_source_that_does_not_answer_is_not_waited_for(
    offering: LiveFrontend, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say_nothing(_: web.Request) -> None:
        await anyio.sleep_forever()

    hub.before = say_nothing
    monkeypatch.setattr(fit_preview, "SIZES_S", 0.2)
    with anyio.fail_after(10):
        shown = await fits_of(offering)
    assert "did not answer within" in shown["size_unknown"]
