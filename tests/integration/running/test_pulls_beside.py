"""Newer files pulled by somebody else while a worker's processes run from those before."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remuda.core.entropy import SystemEntropy
from remuda.oci.client import open_client
from remuda.oci.model import Platform
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.install_spec import spec_from_source
from tests.integration.running.light_backend import write_light_backend
from tests.integration.running.rig import CLOCK, Rig

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pulled_beside(rig: Rig) -> AsyncIterator[Depot]:
    """As `remuda backends pull` has it: a depot of its own in the same folder, which knows of no process."""
    async with open_client(CLOCK, SystemEntropy()) as client:
        yield Depot(rig.yard.places, CLOCK, client, Platform("linux", "amd64"))


def runs_from(rig: Rig, model: str) -> Path:
    """Where the process is, wherever that has been moved."""
    return Path(rig.process(model).cwd())


async def test_files_stay_for_as_long_as_a_process_runs_from_them(rig: Rig, pulled_beside: Depot) -> None:
    source = str(write_light_backend(rig.yard.folder / "source" / "light"))
    rig.yard.offer(light=source)
    old = await rig.installed("light", model_id="old")
    for model in ("newer", "newest"):
        await pulled_beside.install(spec_from_source(source), refresh=True)
        await rig.installed("light", model_id=model)

    folders = {model: runs_from(rig, model) for model in ("old", "newer", "newest")}
    assert all((folder / "run.sh").is_file() for folder in folders.values())
    assert len(set(folders.values())) == 3
    assert folders["newest"] == rig.yard.backend("light")

    await rig.ask("model.stop", model_name="old", process_key="old#0", expected_address=old["address"])
    await rig.installed("light", model_id="one more")

    assert not folders["old"].exists()
    assert (folders["newer"] / "run.sh").is_file()
    await rig.ask("backend.delete", backend="light")
    assert not folders["newer"].exists()
