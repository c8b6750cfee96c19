"""Ollama's official client against `remuda up`: what there is, a real engine, pulls and removals."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import suppress

import anyio
import ollama
import pytest
from anyio.to_thread import run_sync

from remuda.gateway.ollama.listing import API_LEVEL
from remuda.host.ports import free_port
from tests.integration.serving.asking import add_echo
from tests.integration.serving.site import of_model
from tests.support.hub import HubServer, hub_server
from tests.support.models import WIDTH, tiny_embedder, tiny_model
from tests.support.processes import Frontend
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "one two three"}]
LOAD_S = 120


@pytest.fixture(scope="module")
def up(alone: Frontend) -> Iterator[Frontend]:
    add_echo(alone, "parrot")
    yield alone
    assert "Traceback" not in alone.log


@pytest.fixture
async def client(up: Frontend) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(up.url, trust_env=False, timeout=LOAD_S) as client:
        yield client


@pytest.fixture
async def hub() -> AsyncIterator[HubServer]:
    async with hub_server() as server:
        yield server


async def listed(client: ollama.AsyncClient, name: str) -> ollama.ListResponse.Model | None:
    return next((one for one in (await client.list()).models if one.model == name), None)


async def loaded(client: ollama.AsyncClient, name: str) -> ollama.ProcessResponse.Model | None:
    return next((one for one in (await client.ps()).models if one.model == name), None)


async def test_a_model_without_files_is_listed_without_invented_figures(client: ollama.AsyncClient) -> None:
    found = await listed(client, "parrot:latest")
    assert found is not None
    assert found.modified_at is not None
    assert (found.size, found.digest) == (None, None)
    assert found.details is not None
    assert not any(value for _, value in found.details)
    shown = await client.show("parrot:latest")
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo == {}


async def test_a_chat_loads_its_model_and_ps_shows_it(client: ollama.AsyncClient) -> None:
    answer = await client.chat("parrot:latest", HI)
    assert answer.message.content == "one two three"
    assert (answer.load_duration or 0) > 0, "it was loaded for this request"
    parts = [part async for part in await client.chat("parrot", HI, stream=True)]
    assert "".join(part.message.content or "" for part in parts) == "one two three"
    there = await loaded(client, "parrot:latest")
    assert there is not None
    assert there.expires_at is not None


async def test_an_unload_ends_a_model_and_an_empty_prompt_brings_it_back(
    client: ollama.AsyncClient, up: Frontend
) -> None:
    await client.chat("parrot", HI)
    assert (await client.generate("parrot", keep_alive=0)).done_reason == "unload"
    await wait_until(lambda: not of_model(up, "parrot"), within=LOAD_S)
    assert (await client.generate("parrot")).done_reason == "load"

    async def shown() -> bool:
        return await loaded(client, "parrot:latest") is not None

    await wait_until(shown)


async def test_versions_say_whose_api_it_is(client: ollama.AsyncClient, up: Frontend) -> None:
    told = up.get("/api/version")
    assert told["version"] == API_LEVEL
    assert told["remuda"] != API_LEVEL


async def test_a_model_is_pulled_with_its_progress_used_and_deleted(
    client: ollama.AsyncClient, hub: HubServer
) -> None:
    content = tiny_model().read_bytes()
    source = hub.add("/tiny-story.gguf", content)
    hub.bytes_per_s = len(content) / 1.5
    lines = [line async for line in await client.pull(source, stream=True)]
    assert [lines[0].status, lines[-1].status] == ["pulling manifest", "success"]
    moved = [(line.completed or 0, line.total) for line in lines if line.total]
    assert moved, "there was progress to tell"
    assert moved == sorted(moved)
    assert all(total == len(content) for _, total in moved)

    found = await listed(client, "tiny-story:latest")
    assert found is not None
    assert found.size == len(content)
    assert found.digest == hashlib.sha256(content).hexdigest()
    assert found.details is not None
    assert (found.details.format, found.details.family) == ("gguf", "llama")
    shown = await client.show("tiny-story")
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "llama"
    assert "num_ctx" in (shown.parameters or "")

    answer = await client.generate("tiny-story", "the house", options={"num_predict": 5, "temperature": 0})
    assert answer.eval_count == 5
    assert answer.done_reason == "length"
    assert (answer.eval_duration or 0) > 0, "this engine tells how long it took"
    raw = await client.generate(
        "tiny-story", "the house", raw=True, options={"num_predict": 3, "temperature": 0}
    )
    assert raw.eval_count == 3

    assert (await client.pull(source)).status == "success", "it is there"
    assert (await client.delete("tiny-story:latest")).status == "success"
    assert await listed(client, "tiny-story:latest") is None
    with pytest.raises(ollama.ResponseError) as gone:
        await client.delete("tiny-story")
    assert gone.value.status_code == 404


async def test_an_install_goes_on_when_the_client_leaves(client: ollama.AsyncClient, hub: HubServer) -> None:
    content = tiny_model().read_bytes()
    source = hub.add("/left-alone.gguf", content)
    hub.bytes_per_s = len(content) / 1.0
    stream = await client.pull(source, stream=True)
    assert (await anext(aiter(stream))).status == "pulling manifest"
    assert isinstance(stream, AsyncGenerator)
    await stream.aclose()
    with anyio.fail_after(LOAD_S):
        while await listed(client, "left-alone:latest") is None:
            await client.list()
    await client.delete("left-alone")


async def test_a_model_that_is_there_is_pulled_at_once(client: ollama.AsyncClient) -> None:
    for listed in (await client.list()).models[:2]:
        assert (await client.pull(listed.model or "")).status == "success"


async def test_what_cannot_be_pulled_is_told_with_and_without_a_stream(
    client: ollama.AsyncClient, hub: HubServer
) -> None:
    missing = f"{hub.url}/nothing-here.gguf"
    with pytest.raises(ollama.ResponseError, match="does not exist"):
        async for _ in await client.pull(missing, stream=True):
            pass
    with pytest.raises(ollama.ResponseError) as failed:
        await client.pull(missing)
    assert failed.value.status_code == 502
    with pytest.raises(ollama.ResponseError) as refused:
        await client.pull("no such name!")
    assert refused.value.status_code == 400


async def test_a_source_that_cannot_be_reached_is_reported_while_it_is_retried(
    client: ollama.AsyncClient, up: Frontend
) -> None:
    place = f"127.0.0.1:{free_port('127.0.0.1')}"
    source = f"http://{place}/away.gguf"
    stream = await client.pull(source, stream=True)
    assert isinstance(stream, AsyncGenerator)
    waits = anyio.Event()

    async def watch() -> None:
        async for line in stream:
            words = line.status or ""
            if words.startswith(f"{place} cannot be reached: ") and "retried until" in words:
                waits.set()

    async def watch_to_its_end() -> None:
        with pytest.raises(ollama.ResponseError, match="cancelled"):
            await watch()

    with anyio.fail_after(LOAD_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch_to_its_end)
            await waits.wait()
            with pytest.raises(ollama.ResponseError, match="cannot be reached"):  # Nothing is said meanwhile.
                await client.pull(source)
            (op,) = [one for one in up.get("/api/ops")["operations"] if place in one.get("uri", "")]
            assert op["status"] not in ("succeeded", "failed", "cancelled")
            await run_sync(up.ask, "POST", f"/api/ops/{op['id']}/cancel")


async def test_embeddings_of_a_real_model(client: ollama.AsyncClient) -> None:
    await client.pull(f"file://{tiny_embedder()}")
    name = tiny_embedder().stem
    assert (await client.show(name)).capabilities == ["embedding"]
    several = await client.embed(name, ["the house", "bread"])
    assert [len(one) for one in several.embeddings] == [WIDTH, WIDTH]
    single = await client.embeddings(name, "bread")
    assert single.embedding == pytest.approx(several.embeddings[1], abs=1e-4)
    await client.delete(name)


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/api/create", "making models is not offered here"),
        ("POST", "/api/copy", "copying models is not offered here"),
        ("POST", "/api/push", "pushing models"),
        ("DELETE", "/api/push", "pushing models"),
        ("POST", f"/api/blobs/sha256:{'0' * 64}", "single blobs are not taken"),
        ("POST", "/api/web_search", "searching the web"),
    ],
)
async def test_what_is_not_offered_says_so(
    client: ollama.AsyncClient, method: str, path: str, words: str
) -> None:
    answer = await client._client.request(method, path, json={"model": "m"})
    assert answer.status_code == 404
    assert answer.json()["error"].startswith(words)


async def test_nothing_is_left_in_flight(up: Frontend) -> None:
    """Runs last: what the requests of all others have left."""
    left = dict[str, int]()

    def nothing() -> bool:
        left.clear()
        for one in up.get("/api/replicas")["replicas"]:
            if one["in_flight"]:
                left[f"{one['model']} on {one['node']}"] = one["in_flight"]
        return not left

    with suppress(AssertionError):  # What is left is said below.
        await wait_until(nothing)
    assert not left, f"still in flight, by replica: {left}"
