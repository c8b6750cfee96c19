"""The starter model comes with the first start, and with no other."""

import pytest

from remuda.assembly.starter import STARTER, StarterModel
from remuda.core.errors import NotFound
from remuda.ops.ports import Filter
from remuda.scheduler.model import StoredModel
from remuda.store.accounts import SqlSecretStore
from tests.integration.model_installs.conftest import Make
from tests.integration.model_installs.test_installing import TINY
from tests.support.hub import HubServer
from tests.support.model_rig import ModelFrontend

pytestmark = pytest.mark.anyio


def starter(frontend: ModelFrontend) -> StarterModel:
    secrets = SqlSecretStore(frontend.database)
    return StarterModel(secrets, frontend.ops.store, frontend.store, frontend.installs)


async def test_it_is_installed_once_and_stays_removed(make: Make, hub: HubServer) -> None:
    async with make(gallery=f"- name: {STARTER}\n  source: {hub.add('/s.gguf', TINY)}\n") as one:
        assert await starter(one).offer(wanted=True) == STARTER
        (view,) = await one.ops.store.views(Filter())
        assert view.operation.asked_by == "remuda up"
        await one.installed(view.operation.id)
        assert await starter(one).offer(wanted=True) == ""
        await one.ended(await one.remove(STARTER))
        assert await starter(one).offer(wanted=True) == ""
        assert await one.store.models() == []


async def test_who_does_not_want_it_or_has_begun_already_gets_none(make: Make, hub: HubServer) -> None:
    gallery = f"- name: {STARTER}\n  source: {hub.url}/s.gguf\n"
    async with make(gallery=gallery) as one:
        assert await starter(one).offer(wanted=False) == ""
        assert await starter(one).offer(wanted=True) == ""


async def test_a_database_in_use_gets_none(make: Make, hub: HubServer) -> None:
    async with make(gallery=f"- name: {STARTER}\n  source: {hub.url}/s.gguf\n") as one:
        await one.store.put_model(StoredModel("mine", "name: mine\n", "r", "added"))
        assert await starter(one).offer(wanted=True) == ""


async def test_a_gallery_without_it_is_no_trouble(make: Make) -> None:
    async with make() as one:
        with pytest.raises(NotFound):
            await one.install(STARTER)
        assert await starter(one).offer(wanted=True) == ""
