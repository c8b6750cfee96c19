"""What the fleet has brought goes with its model; what a person has put there stays."""

import pytest

from remuda.core.errors import NotFound
from remuda.model_installs.remover import Remover
from remuda.ops.model import State
from remuda.scheduler.model import StoredModel
from remuda.store.ops import SqlOpStore
from remuda.store.replicas import SqlModelStore
from tests.integration.model_installs.conftest import Make
from tests.integration.model_installs.test_installing import TINY, padded
from tests.support.clocks import HostClock
from tests.support.fleet_tables import fresh_database
from tests.support.hub import HubServer
from tests.support.model_rig import ModelFrontend
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def stored(frontend: ModelFrontend) -> list[str]:
    return sorted(blob.digest for blob in frontend.library.blobs.listing())


async def test_a_removed_model_leaves_nothing_but_what_others_use(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    one = await frontend.installed(await frontend.install(hub.add("/m.gguf", TINY), "one"))
    await frontend.installed(await frontend.install(hub.add("/m2.gguf", TINY), "two"))
    assert one.manifest is not None

    step = await frontend.ended(await frontend.remove("one"))
    assert (step.state, step.reason) == (State.SUCCEEDED, "")
    assert frontend.visible() == ["two/m2.gguf"]
    assert stored(frontend) == sorted(one.manifest.digests)
    assert [model.name for model in await frontend.store.models()] == ["two"]

    step = await frontend.ended(await frontend.remove("two"))
    assert "freed" in step.reason
    assert frontend.visible() == []
    assert stored(frontend) == []
    assert not (frontend.library.models / "two").exists()
    with pytest.raises(NotFound):
        await frontend.remove("two")


async def test_a_file_that_a_person_put_there_stays_unless_it_is_meant(frontend: ModelFrontend) -> None:
    models = frontend.library.models
    models.mkdir(parents=True)
    for name in ("mine", "too"):
        (models / f"{name}.gguf").write_bytes(TINY)
        text = f"name: {name}\nbackend: llama-cpp\nparameters: {{model: {name}.gguf}}\n"
        await frontend.store.put_model(StoredModel(name, text, "r", "added"))

    await frontend.ended(await frontend.remove("mine"))
    await frontend.ended(await frontend.remove("too", files=True))

    assert frontend.visible() == ["mine.gguf"]
    assert await frontend.store.models() == []


async def test_a_model_that_is_added_again_is_not_removed_by_what_was_asked_before(
    frontend: ModelFrontend,
) -> None:
    await frontend.store.put_model(StoredModel("m", "name: m\n", "r", "added"))
    op = await frontend.remove("m")
    await frontend.store.remove_model("m")
    await frontend.store.put_model(StoredModel("m", "name: m\n", "r", "added"))
    await frontend.ended(op)
    assert [model.name for model in await frontend.store.models()] == ["m"]


async def test_a_removal_ends_an_install_and_an_install_follows_a_removal(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    url = hub.add("/m.gguf", padded(300_000))
    await frontend.installed(await frontend.install(url))
    hub.add("/m.gguf", padded(400_000))
    hub.bytes_per_s = 300_000
    newer = await frontend.install(url)
    await wait_until(lambda: len(hub.asked("GET")) > 1)

    removal = await frontend.remove("m")

    assert (await frontend.ended(newer)).state is State.CANCELLED
    assert (await frontend.ended(removal)).state is State.SUCCEEDED
    assert frontend.visible() == []
    assert await frontend.store.models() == []

    hub.bytes_per_s = None
    again = await frontend.installed(await frontend.install(url))
    assert again.name == "m"


async def test_other_frontends_let_go_of_what_one_of_them_removed(make: Make, hub: HubServer) -> None:
    async with make("first", name="frontend-1") as first:
        await first.installed(await first.install(hub.add("/m.gguf", TINY)))
    async with make("second", name="frontend-2") as second:
        assert (await second.ended(await second.remove("m"))).state is State.SUCCEEDED
    async with make("first", name="frontend-1") as first:
        assert first.visible() == ["m/m.gguf"]
        await first.tidy()
        assert first.visible() == []


async def test_a_frontend_with_another_database_removes_nothing(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    await frontend.installed(await frontend.install(hub.add("/m.gguf", TINY)))
    other, _ = fresh_database(HostClock())
    remover = Remover(frontend.library, SqlModelStore(other), SqlOpStore(other), frontend.rows)
    assert await remover.tidy() == 0
    assert frontend.visible() == ["m/m.gguf"]
