"""An install that takes its time is nobody else's business."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.integration.running.light_backend import write_light_backend
from tests.integration.running.rig import Yard, working
from tests.support.images import BuiltImage, image, layer, noise_layer
from tests.support.nats_servers import PlainServer
from tests.support.registry import RegistryServer, registry_server
from tests.support.trickle import Relay, relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SLOW_S = 10.0
PROMPT_S = 4.0  # Of a machine that may be busy with other tests, and still less than half of it.


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
async def link(registry: RegistryServer) -> AsyncIterator[Relay]:
    async with relay(registry.port) as opened:
        yield opened


def light_image(folder: Path) -> BuiltImage:
    run_file = write_light_backend(folder) / "run.sh"
    return image([noise_layer(2_000_000, 20), layer({"run.sh": run_file.read_bytes()})])


async def test_a_slow_install_delays_no_install_list_stop_or_heartbeat(
    yard: Yard, nats: PlainServer, registry: RegistryServer, link: Relay, tmp_path: Path
) -> None:
    built = light_image(tmp_path / "source")
    registry.pusher.push("running/slow", "v1", built)
    yard.offer(slow=f"127.0.0.1:{link.port}/running/slow:v1", quick=write_light_backend(tmp_path / "quick"))
    link.bytes_per_s = built.size / SLOW_S
    replies: list[Any] = []

    async with working(yard, nats) as rig:
        write_light_backend(yard.backend("other"))
        await rig.installed("other", model_id="o")

        async def install_slowly() -> None:
            replies.append(await rig.install("slow", model_id="s", op_id="op-1"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(install_slowly)
            await wait_until(lambda: [work["phase"] for work in rig.report()["work"]] == ["downloading"])
            with anyio.fail_after(PROMPT_S):
                await rig.installed("quick", model_id="q")
                listed = (await rig.ask("backend.list"))["backends"]
                await rig.tell("backend.stop", backend="o")
                await wait_until(lambda: rig.replica("o") is None and rig.replica("q"))
            assert replies == []
            assert {row["name"] for row in listed} == {"other", "quick"}
            assert [work["op_id"] for work in rig.report()["work"]] == ["op-1"]
            link.bytes_per_s = float("inf")

        assert replies[0]["success"]
        await rig.until_ready("s")
