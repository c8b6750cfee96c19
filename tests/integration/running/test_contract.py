"""Real backends of three kinds, commanded as the contract says and called as it says."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.running.light_backend import write_light_backend
from tests.integration.running.rig import TOKEN, Rig, Yard
from tests.peers.backend_client import BackendClient, CallFailed
from tests.peers.shell_backend.install import install_shell_backend
from tests.support.models import WIDTH, tiny_model, tiny_reranker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def shell(yard: Yard) -> Path:
    """The peers' backend, as an image would have left it."""
    return install_shell_backend(yard.backend("shell"))


async def health(address: str, token: str) -> str:
    async with BackendClient(address, token) as client:
        return await client.health()


async def assert_token_decides(address: str) -> None:
    assert await health(address, TOKEN) == "OK"
    for wrong in ("", TOKEN[:-1], f"{TOKEN}x"):
        with pytest.raises(CallFailed) as refusal:
            await health(address, wrong)
        assert refusal.value.code == "UNAUTHENTICATED"


@pytest.mark.usefixtures("shell")
async def test_a_backend_built_from_the_contract_alone_runs_and_answers(rig: Rig) -> None:
    reply = await rig.installed("shell", model_id="parrot")

    await assert_token_decides(reply["address"])
    async with BackendClient(reply["address"], TOKEN) as client:
        assert (await client.load_model(Model="parrot", ModelFile="parrot.gguf")).success
        assert (await client.predict(Prompt="one two three", ModelIdentity="parrot")).text == "one two three"


async def test_echo_runs_without_a_download(rig: Rig) -> None:
    reply = await rig.installed("echo", model_id="parrot")

    await assert_token_decides(reply["address"])
    async with BackendClient(reply["address"], TOKEN) as client:
        assert (await client.load_model(Model="parrot")).success
        spoken = [one.text async for one in client.predict_stream(Prompt="one two three")]
        assert "".join(spoken) == "one two three"


@asynccontextmanager
async def holding(rig: Rig, model: str, **options: object) -> AsyncIterator[BackendClient]:
    """A client of the llama-cpp process that was started for this model and has loaded it."""
    reply = await rig.installed("llama-cpp", model_id=model)
    await assert_token_decides(reply["address"])
    wanted = {"ModelFile": str(tiny_model()), "ContextSize": 256, "Threads": 1, "MMap": True, **options}
    async with BackendClient(reply["address"], TOKEN) as client:
        loaded = await client.load_model(Model=model, **wanted)
        assert loaded.success, loaded.message
        yield client


async def test_llama_cpp_loads_a_model_and_answers(rig: Rig) -> None:
    asked: dict[str, Any] = {"Prompt": "the house", "Tokens": 4, "IgnoreEOS": True, "ModelIdentity": "tiny"}
    async with holding(rig, "tiny") as client:
        assert (await client.predict(**asked)).tokens == 4
        assert [one async for one in client.predict_stream(**asked)][-1].tokens == 4
        assert await client.tokenize(Prompt="the house")
        assert (await client.status()).state == "READY"
        assert (await client.metrics()).tokens_generated == 8
        assert (await client.free()).success
        with pytest.raises(CallFailed, match="model not loaded"):
            await client.predict(**asked)


async def test_llama_cpp_makes_vectors_and_ranks(rig: Rig) -> None:
    async with holding(rig, "vectors", Embeddings=True, Options=["pooling:mean"]) as client:
        assert len((await client.embedding(Embeddings="the house")).values) == WIDTH
    async with holding(rig, "ranks", ModelFile=str(tiny_reranker()), Reranking=True) as client:
        ranking = await client.rerank(query="the house", documents=["a river", "bread"])
        assert {one.text for one in ranking.results} == {"a river", "bread"}


@pytest.mark.usefixtures("shell")
async def test_what_runs_is_listed_and_reported(rig: Rig) -> None:
    reply = await rig.installed("shell", model_id="org/parrot", replica_index=1)

    listed = await rig.ask("backend.list")
    running = await rig.ask("models.running")
    row = await rig.until_ready("org/parrot")

    [shell] = listed["backends"]
    assert (shell["name"], shell["is_system"], shell["is_meta"]) == ("shell", False, False)
    assert shell["installed_at"] == "2026-01-02T03:04:05Z"
    expected = {"model_id": "org/parrot", "replica_index": 1, "address": reply["address"]}
    assert [expected.items() <= model.items() for model in running["models"]] == [True]
    assert row["instance"] == reply["instance"] == running["models"][0]["instance"]
    assert (row["replica_index"], row["backend"], row["address"]) == (1, "shell", reply["address"])
    await wait_until(lambda: [one["name"] for one in rig.report()["installed"]] == ["shell"])


async def test_an_install_at_work_is_in_the_report(rig: Rig) -> None:
    await rig.installed("echo", model_id="parrot", op_id="o-1", attempt=2)

    told = [work for account in rig.accounts for work in account.work]
    assert {(work.op_id, work.attempt, work.kind, work.backend) for work in told} == {
        ("o-1", 2, "install", "echo")
    }
    assert [work.phase for work in told][-1] == "starting"
    await wait_until(lambda: rig.report()["work"] == [] and rig.replica("parrot"))


async def test_an_install_of_what_runs_answers_with_the_same_process(rig: Rig) -> None:
    first = await rig.installed("echo", model_id="parrot")
    again = await rig.installed("echo", model_id="parrot")

    assert again == first


@pytest.mark.usefixtures("shell")
async def test_model_stop_ends_exactly_the_process_that_is_meant(rig: Rig) -> None:
    one, two = [await rig.installed("shell", model_id="parrot", replica_index=n) for n in (0, 1)]

    async def stop(**more: object) -> Any:
        return await rig.ask("model.stop", model_name="parrot", process_key="parrot#0", **more)

    mistaken = await stop(expected_address=two["address"])
    port = one["address"].rpartition(":")[2]
    stopped = await stop(expected_address=f"127.0.0.1:{port}")  # Hosts have many names.
    again = await stop(expected_address=one["address"])

    assert (mistaken["matched"], mistaken["terminated"]) == (True, False)
    assert "address mismatch" in mistaken["error"]
    assert stopped == {
        "matched": True,
        "freed": True,
        "terminated": True,
        "process_key": "parrot#0",
        "address": one["address"],
    }
    assert again == {"matched": False, "freed": False, "terminated": True, "process_key": "parrot#0"}
    assert await health(two["address"], TOKEN) == "OK"


@pytest.mark.usefixtures("shell")
async def test_backend_stop_ends_by_backend_by_model_by_key_or_everything(rig: Rig) -> None:
    async def running() -> set[str]:
        models = (await rig.ask("models.running"))["models"]
        return {f"{model['model_id']}#{model['replica_index']}" for model in models}

    for model, index in (("a", 0), ("a", 1), ("b", 0), ("b", 1)):
        await rig.installed("shell", model_id=model, replica_index=index)
    await rig.tell("backend.stop", backend="a#1")
    await wait_until(lambda: len(rig.yard.alive()) == 3)
    assert await running() == {"a#0", "b#0", "b#1"}
    await rig.tell("backend.stop", backend="b")
    await wait_until(lambda: len(rig.yard.alive()) == 1)
    assert await running() == {"a#0"}
    await rig.tell("backend.stop", backend="shell")
    await wait_until(lambda: not rig.yard.alive())


async def test_delete_ends_the_processes_before_the_files(rig: Rig, shell: Path) -> None:
    await rig.installed("shell", model_id="parrot")
    await rig.installed("shell", model_id="cockatoo")

    deleted = await rig.ask("backend.delete", backend="shell")
    missing = await rig.ask("backend.delete", backend="shell")

    assert deleted == {
        "success": True,
        "stopped_process_keys": ["cockatoo#0", "parrot#0"],
        "reports_stopped_processes": True,
    }
    assert not shell.parent.exists()
    assert rig.yard.alive() == []
    assert "backend not found" in missing["error"]
    assert (await rig.ask("backend.list"))["backends"] == []


async def test_upgrade_ends_every_process_of_the_backend_and_starts_none(rig: Rig) -> None:
    rig.yard.offer(light=write_light_backend(rig.yard.folder / "source" / "light"))
    for index in (0, 1):
        await rig.installed("light", model_id="a", replica_index=index)
    before = await rig.installed("light", model_id="b")
    await rig.installed("echo", model_id="other")

    upgraded = await rig.ask("backend.upgrade", backend="light")
    running = (await rig.ask("models.running"))["models"]
    after = await rig.installed("light", model_id="b")

    assert upgraded == {
        "success": True,
        "stopped_process_keys": ["a#0", "a#1", "b#0"],
        "reports_stopped_processes": True,
    }
    assert [model["model_id"] for model in running] == ["other"]
    assert after["instance"] != before["instance"]


@pytest.mark.usefixtures("shell")
async def test_what_a_backend_writes_can_be_read_at_the_worker_by_who_has_the_token(rig: Rig) -> None:
    reply = await rig.installed("shell", model_id="org/parrot")
    page = "/v1/backend-logs/org%2Fparrot"

    refused = await rig.http.get(page)
    answer = await rig.http.get(page, headers={"Authorization": f"Bearer {TOKEN}"})

    assert refused.status_code == 401
    lines = [(line["stream"], line["text"]) for line in answer.json()]
    assert ("stdout", f"listening on {reply['address']}") in lines
