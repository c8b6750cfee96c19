"""A model that somebody names arrives whole and checked, or not at all."""

import hashlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from remuda.core.errors import Conflict, Invalid, NotFound
from remuda.hubs.model import AskRoom, Resolved
from remuda.model_installs.service import InstallRequest
from remuda.models.reading import read_model
from remuda.models.source_refs import ModelSource
from remuda.oci import disk
from remuda.oci.errors import UnknownHost
from remuda.ops.model import OpId, State, Wish
from remuda.ops.op_views import job, with_steps
from remuda.ops.ports import Filter
from remuda.ops.progress import overlaid
from remuda.scheduler.catalogue import ModelCatalogue
from remuda.scheduler.model import StoredModel
from remuda.scheduler.seen_facts import Weights
from tests.integration.model_installs.conftest import Make
from tests.support.hub import HubServer, hub_server
from tests.support.images import noise
from tests.support.model_rig import ModelFrontend
from tests.support.models import tiny_model, tiny_reranker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

TINY = tiny_model().read_bytes()
SHA256 = hashlib.sha256(TINY).hexdigest()


@pytest.fixture
def away() -> Iterator[socket.socket]:
    """Where nobody listens, and nobody else can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def padded(size: int) -> bytes:
    """A model with so many more bytes behind its tensors, which no reader minds."""
    return TINY + noise(size, 3)


async def test_a_model_arrives_with_its_manifest_and_is_described(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    url = hub.add("/some/Tiny-Llama.Q4_0.gguf", TINY)

    model = await frontend.installed(await frontend.install(url))

    assert model.name == "tiny-llama"
    assert model.manifest is not None
    (file,) = model.manifest.files
    assert (file.path, file.size, file.sha256) == ("tiny-llama/Tiny-Llama.Q4_0.gguf", len(TINY), SHA256)
    assert (model.manifest.source, model.kept_by) == (url, "frontend-1")
    config = read_model(model.text)
    assert (config.file, config.backend) == (file.path, "llama-cpp")
    assert config.known_usecases == ("chat", "completion")
    assert frontend.visible() == [file.path]
    linked = frontend.library.models / file.path
    assert linked.samefile(frontend.library.blobs.path(file.digest)), "stored once"
    assert linked.stat().st_mode & 0o222 == 0, "no backend can write into it"


async def test_a_frontend_without_the_file_knows_the_same_of_the_model(
    frontend: ModelFrontend, hub: HubServer, tmp_path: Path
) -> None:
    url = hub.add("/some/Tiny-Llama.Q4_0.gguf", TINY)
    await frontend.installed(await frontend.install(url))
    with_file = ModelCatalogue(frontend.store, frontend.library.models)
    without = ModelCatalogue(frontend.store, tmp_path / "nothing-here")
    for catalogue in (with_file, without):
        await catalogue.refresh()
    here, elsewhere = with_file.models["tiny-llama"], without.models["tiny-llama"]
    assert (here.here, elsewhere.here) == (True, False)
    assert elsewhere.weights == here.weights
    assert elsewhere.weights.facts is not None
    assert elsewhere.need() == here.need()
    assert await without.weights(here.config) == here.weights
    other_file = read_model(here.stored.text.replace(here.config.file, "tiny-llama/another.gguf"))
    assert await without.weights(other_file) == Weights()


async def test_what_a_model_is_for_is_read_from_its_header(frontend: ModelFrontend, hub: HubServer) -> None:
    url = hub.add("/rank.gguf", tiny_reranker().read_bytes())

    model = await frontend.installed(await frontend.install(url, "ranker"))

    config = read_model(model.text)
    assert (config.name, config.reranking, config.known_usecases) == ("ranker", True, ("rerank",))


@pytest.mark.parametrize(
    ("path", "content", "why"),
    [
        ("/cut.gguf", TINY[:-1000], "cut off"),
        ("/short.gguf", TINY[:100], "ends within its header|cut off|too short"),
        ("/page.gguf", b"<!DOCTYPE html><html><body>Please log in</body></html>", "web page, not a GGUF"),
        ("/m-00001-of-00002.gguf", TINY, r"m-00002-of-00002\.gguf"),
        ("/notes.txt", b"hello", "no model in it"),
    ],
)
async def test_what_is_no_whole_model_is_refused_and_never_seen(
    frontend: ModelFrontend, hub: HubServer, path: str, content: bytes, why: str
) -> None:
    step = await frontend.ended(await frontend.install(hub.add(path, content), "bad"))

    assert step.state is State.FAILED
    assert step.problem is not None
    assert re.search(why, step.problem.message), step.problem.message
    assert str(frontend.library.models) not in step.problem.message
    assert frontend.visible() == []
    assert not any(frontend.library.models.glob(".*"))
    assert await frontend.store.models() == []


async def test_a_wrong_checksum_is_refused(frontend: ModelFrontend, hub: HubServer) -> None:
    step = await frontend.ended(await frontend.install(hub.add("/m.gguf", TINY), sha256="0" * 64))
    assert step.state is State.FAILED
    assert frontend.visible() == []


async def test_a_source_that_nobody_answers_at_is_waited_for(
    frontend: ModelFrontend, away: socket.socket
) -> None:
    port = away.getsockname()[1]
    op = await frontend.install(f"http://127.0.0.1:{port}/m.gguf")

    async def tried_on() -> bool:
        return (await frontend.step(op)).attempt > 4

    await wait_until(tried_on)
    problem = (await frontend.step(op)).problem
    assert problem is not None
    assert re.match(rf"127\.0\.0\.1:{port} cannot be reached: .* \(unreachable since ", problem.message)
    assert "see that it can be reached from the frontend's machine" in problem.hint
    async with hub_server(away) as back:
        back.add("/m.gguf", TINY)
        assert (await frontend.installed(op)).name == "m"


class Nowhere:
    """Hubs of which the name service knows none."""

    async def resolve(self, source: ModelSource, room: AskRoom) -> Resolved:
        raise UnknownHost("hbu.test:443 cannot be reached: there is no host hbu.test")


async def test_a_host_that_does_not_exist_ends_the_install(make: Make) -> None:
    async with make(hubs=Nowhere()) as frontend:
        step = await frontend.ended(await frontend.install("https://hbu.test/m.gguf"))
    assert (step.state, step.attempt) == (State.FAILED, 1)
    assert step.problem is not None
    assert step.problem.message == "hbu.test:443 cannot be reached: there is no host hbu.test"
    assert "how it is spelled" in step.problem.hint


async def test_a_source_that_may_be_back_counts_more_than_a_mirror_without_the_model(
    make: Make, hub: HubServer, away: socket.socket
) -> None:
    port = away.getsockname()[1]
    mirrored = f"- name: tiny\n  source: http://127.0.0.1:{port}/m.gguf\n  mirrors: [{hub.url}/gone.gguf]\n"
    async with make(gallery=mirrored) as frontend:
        op = await frontend.install("tiny")

        async def tried_on() -> bool:
            return (await frontend.step(op)).attempt > 1

        await wait_until(tried_on)
        async with hub_server(away) as back:
            back.add("/m.gguf", TINY)
            assert (await frontend.installed(op)).name == "tiny"


async def test_a_source_that_answers_with_a_failure_is_tried_on(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    async def busy(_: web.Request) -> web.Response:
        return web.Response(status=503)

    hub.before = busy
    op = await frontend.install(hub.add("/later.gguf", TINY))

    async def begun_anew() -> bool:
        return (await frontend.step(op)).attempt > 1

    await wait_until(begun_anew)
    hub.before = None
    assert (await frontend.installed(op)).name == "later"


async def test_the_disk_is_looked_at_before_the_first_byte(
    frontend: ModelFrontend, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 1000)
    step = await frontend.ended(await frontend.install(hub.add("/m.gguf", padded(3_000_000))))

    assert step.problem is not None
    assert step.problem.code == "disk_full"
    assert "needs 3." in step.problem.message
    assert "1000 B are free" in step.problem.message
    assert hub.bytes_sent == 0


async def test_a_path_is_not_taken_for_a_name(frontend: ModelFrontend) -> None:
    with pytest.raises(NotFound, match=r"remuda models add FILE.*file:///PATH"):
        await frontend.install("/srv/tiny.gguf")


async def test_how_far_it_is_can_be_watched(frontend: ModelFrontend, hub: HubServer) -> None:
    content = padded(300_000)
    hub.bytes_per_s = 1_500_000
    op = await frontend.install(hub.add("/m.gguf", content))

    async def midway() -> bool:
        view = overlaid(await frontend.view(op), frontend.ops.board, (await frontend.ops.store.live()).now)
        shown = with_steps(view, (await frontend.ops.store.live()).now, frontend.ops.board)
        assert shown.steps is not None
        progress = shown.steps[0].progress
        if progress is None or progress.phase != "downloading" or not progress.current_bytes:
            return False
        assert (progress.total_bytes, progress.file_name) == (len(content), "m.gguf")
        assert (progress.file_number, progress.file_count, progress.file_size) == (1, 1, len(content))
        assert frontend.visible() == []
        return 0 < job(view).progress < 100

    await wait_until(midway, what="a part of it to have come")
    await frontend.installed(op)
    assert job(await frontend.view(op)).completed


async def test_a_model_that_is_being_installed_is_joined_by_its_name(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    hub.bytes_per_s = 1_500_000
    op = await frontend.install(hub.add("/m.gguf", padded(300_000)), "mine")

    assert await frontend.installs.present(InstallRequest("mine")) == ""
    assert await frontend.install("mine") == op
    with pytest.raises(NotFound, match="'mine' yet: it is being installed"):
        await frontend.install("mine", "another")

    await frontend.installed(op)
    assert await frontend.installs.present(InstallRequest("mine")) == "mine"


async def test_a_model_that_is_added_meanwhile_is_not_replaced(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    hub.bytes_per_s = 1_500_000
    op = await frontend.install(hub.add("/m.gguf", padded(300_000)))
    await wait_until(lambda: hub.bytes_sent > 0)
    by_hand = await frontend.store.put_model(StoredModel("m", "name: m\n", "1", "added"))
    hub.bytes_per_s = None

    step = await frontend.ended(op)

    assert step.state is State.FAILED
    assert step.problem is not None
    assert "there is a model m already, which was added by hand" in step.problem.message
    assert await frontend.store.models() == [by_hand]
    assert frontend.visible() == []


async def test_a_pause_keeps_what_came_and_cancelling_ends_it(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    content = padded(3_000_000)
    hub.bytes_per_s = 2_000_000
    op = await frontend.install(hub.add("/m.gguf", content))
    await wait_until(lambda: hub.bytes_sent > 500_000)

    await frontend.ops.store.wish(op, Wish.PAUSE)
    frontend.ops.signal.notify()

    async def paused() -> bool:
        step = await frontend.step(op)
        return step.state is State.PENDING and step.reason == "paused"

    await wait_until(paused)
    hub.bytes_per_s = None
    await frontend.ops.store.wish(op, Wish.RUN)
    frontend.ops.signal.notify()
    await frontend.installed(op)
    begins = [request.http_range.start for request in hub.asked("GET", "/m.gguf")]
    assert all(begins[1:]), "what has come is not fetched again"

    hub.bytes_per_s = 500_000
    other = await frontend.install(hub.add("/other.gguf", content + b"x"))
    await wait_until(lambda: len(hub.asked("GET", "other")) > 0)
    await frontend.ops.store.wish(other, Wish.CANCEL)
    frontend.ops.signal.notify()
    assert (await frontend.ended(other)).state is State.CANCELLED
    assert [model.name for model in await frontend.store.models()] == ["m"]


async def test_a_source_that_fails_is_tried_again_and_then_its_mirrors(make: Make, hub: HubServer) -> None:
    mirror = hub.add("/mirror/m.gguf", TINY)
    gallery = f"- name: tiny\n  source: {hub.url}/gone/m.gguf\n  mirrors: [{mirror}]\n  sha256: {SHA256}\n"
    async with make(gallery=gallery) as frontend:
        model = await frontend.installed(await frontend.install("tiny"))
        assert model.manifest is not None
        assert model.manifest.source == f"{hub.url}/gone/m.gguf"


# Several at once.


async def test_two_frontends_that_are_asked_at_once_install_a_model_once(make: Make, hub: HubServer) -> None:
    url = hub.add("/m.gguf", TINY)
    ops: list[OpId] = []
    async with make() as first, make("second", name="frontend-2") as second:

        async def ask(frontend: ModelFrontend) -> None:
            ops.append(await frontend.install(url))

        async with anyio.create_task_group() as asking:
            asking.start_soon(ask, first)
            asking.start_soon(ask, second)
        model = await first.installed(ops[0])

        assert ops[0] == ops[1]
        assert first.visible() + second.visible() == ["m/m.gguf"]
        assert model.kept_by in (first.holder.frontend, second.holder.frontend)
        assert len(hub.asked("GET")) == 1


async def test_the_same_install_is_joined_and_another_of_its_name_refused(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    hub.bytes_per_s = 1_000_000
    url = hub.add("/m.gguf", padded(500_000))
    first = await frontend.install(url)
    assert await frontend.install(url) == first
    with pytest.raises(Conflict, match=rf"m is being installed from {url}, by operation {first[:8]}"):
        await frontend.install(hub.add("/elsewhere/m.gguf", TINY))
    hub.bytes_per_s = None
    await frontend.installed(first)

    again = await frontend.ended(await frontend.install(url))
    assert (again.state, again.reason) == (
        State.SUCCEEDED,
        "already installed, and its source has nothing newer",
    )
    with pytest.raises(Conflict, match="which came from"):
        await frontend.install(f"{hub.url}/elsewhere/m.gguf")
    await frontend.store.put_model(StoredModel("by-hand", "name: by-hand\n", "r", "added"))
    with pytest.raises(Conflict, match="added by hand"):
        await frontend.install(url, "by-hand")


async def test_people_keep_what_they_made_of_a_models_configuration(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    url = hub.add("/m.gguf", TINY)
    model = await frontend.installed(await frontend.install(url))
    edited = f"{model.text}# mine\nthreads: 2\n"
    await frontend.store.put_model(StoredModel("m", edited, "changed", "added"))

    hub.add("/m.gguf", padded(10))
    model = await frontend.installed(await frontend.install(url))

    assert model.text == edited
    assert model.manifest is not None
    assert model.manifest.size == len(TINY) + 10


async def test_a_different_file_of_a_person_is_left_alone(frontend: ModelFrontend, hub: HubServer) -> None:
    own = frontend.library.models / "m/m.gguf"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"mine")

    step = await frontend.ended(await frontend.install(hub.add("/m.gguf", TINY)))

    assert step.state is State.FAILED
    assert "is not what would be installed" in step.reason
    assert own.read_bytes() == b"mine"


# Names.


async def test_a_name_that_nobody_knows_is_refused_with_what_may_be_meant(make: Make) -> None:
    async with make(
        gallery="- name: qwen3-8b\n  aliases: ['qwen3:8b']\n  source: hf://Qwen/Qwen3-8B-GGUF\n"
    ) as one:
        with pytest.raises(NotFound, match="did you mean qwen3:8b"):
            await one.install("qwen3:8")
        with pytest.raises(NotFound, match="ollama://mistral"):
            await one.install("mistral")
        with pytest.raises(NotFound, match=r"from Ollama: ollama://smol\)"):
            await one.install("ollama:smol")
        with pytest.raises(NotFound, match="hf://someone/something"):
            await one.install("someone/something")
        for bad in ("hf://x", "nonsense://a/b"):
            with pytest.raises(Invalid):
                await one.install(bad)
        with pytest.raises(Invalid, match=r"\.\."):
            await one.install("hf://Qwen/Qwen3-8B-GGUF", "a/../b")
        assert not await one.ops.store.views(Filter())


# Frontends that go.


async def test_another_frontend_takes_over_and_the_same_one_goes_on_where_it_was(
    make: Make, hub: HubServer, tmp_path: Path
) -> None:
    content = padded(1_000_000)
    hub.bytes_per_s = 2_000_000
    async with make("first", name="frontend-1") as first:
        op = await first.install(hub.add("/m.gguf", content))
        await wait_until(lambda: hub.bytes_sent > 500_000)
    hub.bytes_per_s = None

    async with make("first", name="frontend-1") as restarted:  # At once: it knows what it had in hand.
        model = await restarted.installed(op)
        assert (await restarted.step(op)).attempt == 2
    assert hub.bytes_sent < 1.15 * len(content)
    assert model.kept_by == "frontend-1"

    hub.bytes_per_s = 2_000_000
    async with make("first", name="frontend-1") as first:
        op = await first.install(hub.add("/n.gguf", content + b"n"))
        await wait_until(lambda: hub.bytes_sent > 2_000_000)
    hub.bytes_per_s = None
    async with make("second", name="frontend-2") as second:
        model = await second.installed(op)
    assert model.kept_by == "frontend-2"
