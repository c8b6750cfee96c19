"""Installs that are killed in every phase, and processes that share a depot."""

from pathlib import Path

import anyio
import pytest

from remuda.host.children import running
from tests.support.killed_installs import MB, check_whole, killed_upgrade, spec, version_image
from tests.support.registry import RegistryServer
from tests.support.trickle import relay

pytestmark = pytest.mark.anyio

IMAGE_BYTES = 12 * MB  # `python -m bench.killed_pull` takes one of 200 MB.
LOST_MAX = 1 * MB  # At a kill, however far the download was: what the kernel held, or was not yet written.


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
async def test_killed_in_every_phase_an_upgrade_completes(
    registry: RegistryServer, tmp_path: Path, every: int
) -> None:
    outcome = await killed_upgrade(registry, tmp_path, IMAGE_BYTES, every=every)

    assert outcome.fetched - outcome.size < LOST_MAX * outcome.kills["downloading"]
    assert set(outcome.kills) == {"resolving", "downloading", "extracting", "moving"}


async def test_two_processes_on_one_depot_do_not_disturb_each_other(
    registry: RegistryServer, tmp_path: Path
) -> None:
    built = version_image(3, IMAGE_BYTES)
    registry.pusher.push("shared/backend", "v3", built)

    async with relay(registry.port) as link:
        specs = [
            spec(link, "shared/backend:v3", tmp_path, [], name, 0) for name in ("one", "one", "two", "three")
        ]
        async with (
            running(specs[0]) as first,
            running(specs[1]) as second,
            running(specs[2]) as third,
            running(specs[3]) as fourth,
        ):
            with anyio.fail_after(120):
                assert [await child.wait() for child in (first, second, third, fourth)] == [0] * 4
        assert link.bytes_back < 1.05 * built.size

    await check_whole(tmp_path, IMAGE_BYTES)
    assert len(list((tmp_path / "backends").glob("*/version"))) == 3
