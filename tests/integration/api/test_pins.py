"""Tags are pinned when an operation is made: against a real registry, and where there is none."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from remuda.assembly.operations import RegistryPinner
from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.oci.client import open_client
from remuda.oci.transport import RetryPolicy
from remuda.ops.ports import Build, Pin
from remuda.ops.upgrade_check import pin_all
from tests.integration.api.ops_frontends import ops_frontend, our_node
from tests.support.frontends import LiveFrontend
from tests.support.images import Blob, image, layer
from tests.support.registry import RegistryServer, registry_server

pytestmark = pytest.mark.anyio
AMD = "linux/amd64"


@pytest.fixture(scope="module")
async def registry(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RegistryServer]:
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
async def pinner() -> AsyncIterator[RegistryPinner]:
    once = RetryPolicy(attempts_max=1)
    async with open_client(SystemClock(), SeededEntropy(1), retry=once, through_proxies=False) as client:
        yield RegistryPinner(client)


def pushed(registry: RegistryServer, tag: str, content: bytes) -> Blob:
    """An image for one platform; its index."""
    built = image([layer({"run.sh": content})])
    return registry.pusher.push_index("backends", tag, {AMD: built})


async def test_a_tag_is_pinned_to_the_digest_of_its_index(
    registry: RegistryServer, pinner: RegistryPinner
) -> None:
    index = pushed(registry, "pinned", b"one")
    uri = f"{registry.name}/backends:pinned"
    for uri_of, platform in ((uri, ""), (uri, AMD), (f"oci://{uri}", AMD)):
        pin = await pinner.pin(Build(uri_of, platform))
        assert replace(pin, size_bytes=None) == Pin(index.digest)
        assert bool(pin.size_bytes) == bool(platform), "what is fetched depends on the platform"


async def test_a163_a_platform_that_an_image_has_no_build_for_is_told(
    registry: RegistryServer, pinner: RegistryPinner
) -> None:
    pushed(registry, "amd-only", b"one")
    pin = await pinner.pin(Build(f"{registry.name}/backends:amd-only", "linux/arm64"))
    assert (pin.digest, "arm64" in pin.missing) == ("", True)


async def test_a_tag_that_does_not_exist_is_told_as_such(
    registry: RegistryServer, pinner: RegistryPinner
) -> None:
    uri = f"{registry.name}/backends:never-pushed"
    pin = await pinner.pin(Build(uri))
    assert pin.unasked(uri) == f"{uri} does not exist in the registry"
    away = Pin(trouble="connection refused")
    assert away.unasked(uri).startswith(f"{registry.name} could not be asked what ")


@pytest.mark.parametrize(
    "uri", ["127.0.0.1:1/x/y:z", "builtin:echo", "nothing", "https://x.invalid/a.tar.gz"]
)
async def test_what_cannot_be_pinned_stays_unpinned(pinner: RegistryPinner, uri: str) -> None:
    assert (await pinner.pin(Build(uri, AMD))).digest == ""


async def test_registries_that_do_not_answer_are_waited_for_together_and_not_for_long() -> None:
    class Deaf:
        async def pin(self, build: Build) -> Pin:
            if build.uri == "quick":
                return Pin("sha256:x")
            await anyio.sleep_forever()
            raise AssertionError("it never answers")

    builds = [Build("quick"), *(Build(f"slow-{number}") for number in range(10))]
    with anyio.fail_after(5):
        pins = dict(await pin_all(Deaf(), builds, patience_s=0.1))
    assert pins.pop(Build("quick")) == Pin("sha256:x")
    assert set(pins.values()) == {Pin(trouble="no answer within 0.1 s")}
    assert len(pins) == 10


@pytest.fixture
async def frontend(tmp_path: Path, registry: RegistryServer) -> AsyncIterator[LiveFrontend]:
    async with ops_frontend(tmp_path, insecure_registries=[registry.name]) as live:
        index = tmp_path / "index.yaml"
        index.write_text(f"- name: tagged\n  uri: {registry.name}/backends:tagged\n")
        yield live


async def test_a098_a099_a_moved_tag_is_an_upgrade_until_every_node_has_what_it_stands_for(
    frontend: LiveFrontend, registry: RegistryServer
) -> None:
    old, new = pushed(registry, "tagged", b"old"), pushed(registry, "tagged", b"new")
    node = await our_node(frontend, "one", {"name": "tagged", "digest": old.digest})
    found = (await frontend.admin.post("/api/backends/upgrades/check")).json()
    assert (found["tagged"]["installed_digest"], found["tagged"]["available_digest"]) == (
        old.digest,
        new.digest,
    )
    accepted = (await frontend.admin.post("/api/ops/upgrades")).json()["operations"]
    [step] = accepted[0]["operation"]["steps"]
    assert (step["digest"], step["pinned"]) == (new.digest, True)
    report = {"boot_id": "boot-1", "sequence": 2, "installed": [{"name": "tagged", "digest": new.digest}]}
    await frontend.heartbeat(node["id"], report=report)
    assert (await frontend.admin.get("/api/backends/upgrades")).json() == {}


async def test_a_plan_says_which_nodes_have_the_newest_version_already(
    frontend: LiveFrontend, registry: RegistryServer
) -> None:
    old, new = pushed(registry, "tagged", b"old"), pushed(registry, "tagged", b"new")
    await our_node(frontend, "behind", {"name": "tagged", "digest": old.digest})
    await our_node(frontend, "current", {"name": "tagged", "digest": new.digest})

    async def plan(**more: object) -> dict[str, tuple[str, str]]:
        body = {"kind": "upgrade", "backend": "tagged", "dry_run": True, **more}
        steps = (await frontend.admin.post("/api/ops", json=body)).json()["steps"]
        return {step["node_name"]: (step["state"], step.get("reason", "")) for step in steps}

    had = ("succeeded", "it already had this version")
    assert await plan() == {"behind": ("pending", ""), "current": had}
    assert await plan(nodes=["current"]) == {"current": had}
    assert await plan(nodes=["current"], force=True) == {"current": ("pending", "")}


async def test_a_plan_says_what_comes_to_nodes_and_what_room_they_have(
    frontend: LiveFrontend, registry: RegistryServer
) -> None:
    has_it = {"name": "tagged", "digest": pushed(registry, "tagged", b"sized").digest}
    labels = {"node.arch": "amd64"}
    bare = await our_node(frontend, "bare", labels=labels, total_disk=1000, available_disk=400)
    await our_node(frontend, "has-it", has_it, labels=labels)
    body = {"kind": "install", "backend": "tagged", "dry_run": True, "nodes": ["bare", "has-it"]}
    plan = (await frontend.admin.post("/api/ops", json=body)).json()
    states = {step["node_name"]: step["state"] for step in plan["steps"]}
    assert states == {"bare": "pending", "has-it": "succeeded"}
    (fetch,) = plan["fetches"]
    assert (fetch["node_id"], fetch["disk_free"]) == (bare["id"], 400)
    assert 0 < fetch["fetch_bytes"] < 1000
    shipped = (await frontend.admin.post("/api/ops", json={**body, "backend": "echo"})).json()["fetches"]
    assert {one["fetch_bytes"] for one in shipped} == {0}


async def test_a163_a_node_whose_platform_the_image_lacks_is_skipped(
    frontend: LiveFrontend, registry: RegistryServer
) -> None:
    pushed(registry, "tagged", b"amd64 only")
    await our_node(frontend, "arm", labels={"node.arch": "arm64"})
    await our_node(frontend, "amd", labels={"node.arch": "amd64"})
    body = {"kind": "install", "backend": "tagged", "nodes": ["arm", "amd"]}
    steps = (await frontend.admin.post("/api/ops", json=body)).json()["operation"]["steps"]
    assert {step["node_name"]: step["state"] for step in steps} == {"arm": "skipped", "amd": "pending"}
