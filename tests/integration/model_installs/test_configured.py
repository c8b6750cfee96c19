"""What the configuration of a model names is fetched beside it: by one operation for each text, never over a
person's own file, and let go of when it is named no more."""

import hashlib
from typing import cast

import pytest

from remuda.core.errors import Forbidden
from remuda.ops.model import OpId, State, Wish
from remuda.ops.ports import Filter
from remuda.scheduler.catalogue import Catalogued, ModelFolder
from remuda.scheduler.ports import FilesComing, FilesNotFetched, RoutingTable
from tests.integration.model_installs.conftest import Make
from tests.support.hub import HubRepo, HubServer, hugging_face_server
from tests.support.images import noise
from tests.support.model_rig import ModelFrontend, impatient_hubs
from tests.support.models import empty_gguf, tiny_model
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

TINY = tiny_model().read_bytes()
SHA256 = hashlib.sha256(TINY).hexdigest()
EYES = empty_gguf({"general.architecture": "clip", "general.type": "mmproj"})


def listing(name: str, *files: str) -> str:
    listed = "".join(f"- {{{file}}}\n" for file in files)
    return f"name: {name}\nbackend: llama-cpp\nparameters: {{model: own.gguf}}\ndownload_files:\n{listed}"


async def known(frontend: ModelFrontend, name: str) -> Catalogued:
    await frontend.catalogue.refresh()
    return frontend.catalogue.configured[name]


async def done(frontend: ModelFrontend, op: OpId | None) -> None:
    assert op is not None
    step = await frontend.ended(op)
    assert step.state is State.SUCCEEDED, step


async def failed(frontend: ModelFrontend, op: OpId | None) -> str:
    assert op is not None
    step = await frontend.ended(op)
    assert step.state is State.FAILED, step
    assert step.problem is not None
    return step.problem.message


async def all_ops(frontend: ModelFrontend) -> list[OpId]:
    return [view.operation.id for view in await frontend.ops.store.views(Filter(dismissed=True))]


async def test_listed_files_come_to_their_places_in_the_folder_of_models(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    url, eyes = hub.add("/a.gguf", TINY), hub.add("/b.gguf", EYES)
    text = listing(
        "own",
        f'filename: own.gguf, uri: "{url}", sha256: {SHA256.upper()}',
        f'filename: parts/eyes.gguf, uri: "{eyes}"',
    )

    op = await frontend.configured(text)
    assert (await known(frontend, "own")).lacks_files
    await done(frontend, op)

    assert frontend.visible() == ["own.gguf", "parts/eyes.gguf"]
    model = await known(frontend, "own")
    assert (model.stored.text, model.lacks_files, model.here) == (text, False, True)
    needed = await frontend.catalogue.files(model)
    assert [file.path for file in needed] == ["own.gguf", "parts/eyes.gguf"]
    assert await frontend.configured(text) is None, "nothing is left to be fetched"


async def test_a_source_in_place_of_the_model_is_fetched_and_served_as_its_file_says(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    text = f'name: far\nparameters: {{model: "{hub.add("/x/Tiny.gguf", TINY)}", temperature: 0.1}}\n'

    await done(frontend, await frontend.configured(text))

    model = await known(frontend, "far")
    assert frontend.visible() == ["far/Tiny.gguf"]
    assert (model.config.file, model.config.parameters.temperature) == ("far/Tiny.gguf", 0.1)
    assert model.config.backend == "llama-cpp"
    assert (model.stored.text, model.here) == (text, True)
    assert model.weights.facts is not None


async def test_a_snapshot_is_a_folder_that_an_option_names(make: Make) -> None:
    files = {"config.json": b"{}", "a.bin": noise(1000, 2), "readme.md": b"no"}
    async with (
        hugging_face_server() as face,
        impatient_hubs({"HF_ENDPOINT": face.hub.url}) as hubs,
        make(hubs=hubs) as frontend,
    ):
        face.repos["some/side"] = HubRepo(files)
        frontend.library.models.mkdir(parents=True)
        (frontend.library.models / "own.gguf").write_bytes(TINY)
        artifact = "{name: side, source: {type: huggingface, repo: some/side, ignore_patterns: ['*.md']}}"
        text = f"name: own\nbackend: llama-cpp\nparameters: {{model: own.gguf}}\nartifacts: [{artifact}]\n"

        await done(frontend, await frontend.configured(text))

        assert frontend.visible() == [
            "own.gguf",
            "own/artifacts/side/a.bin",
            "own/artifacts/side/config.json",
        ]
        model = await known(frontend, "own")
        assert model.config.options == ("side:own/artifacts/side",)
        assert "own.gguf" in [file.path for file in await frontend.catalogue.files(model)]


async def test_a_persons_own_file_is_used_as_it_is_or_complained_of_and_never_overwritten(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    frontend.library.models.mkdir(parents=True)
    own = frontend.library.models / "own.gguf"
    own.write_bytes(TINY)
    eyes = f'filename: eyes.gguf, uri: "{hub.add("/b.gguf", EYES)}"'
    gone = f"{hub.url}/nothing.gguf"

    await done(
        frontend, await frontend.configured(listing("own", f'filename: own.gguf, uri: "{gone}"', eyes))
    )
    assert hub.asked("GET", "nothing") == []
    text = listing("own", eyes, f'filename: own.gguf, uri: "{gone}", sha256: {"0" * 64}')
    why = await failed(frontend, await frontend.configured(text))

    assert own.read_bytes() == TINY
    assert why.startswith(f"line 6: download_files[1]: {own} is there already, and does not have")
    state = await frontend.wanted.state((await known(frontend, "own")).stored)
    assert isinstance(state, FilesNotFetched)


async def test_an_edit_fetches_what_is_missing_and_lets_go_of_what_is_named_no_more(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    def file(name: str, content: bytes) -> str:
        return f'filename: {name}, uri: "{hub.add(f"/far/{name}", content)}"'

    one, two, shared = file("one.bin", noise(1000, 1)), file("two.bin", noise(900, 2)), file("both.bin", b"3")
    model = file("own.gguf", TINY)
    await done(frontend, await frontend.configured(listing("own", model, one, shared)))
    await done(frontend, await frontend.configured(listing("other", model, shared)))

    await done(frontend, await frontend.configured(listing("own", model, two)))

    assert frontend.visible() == ["both.bin", "own.gguf", "two.bin"], "what another model names stays"
    assert len(hub.asked("GET", "own.gguf")) == 1, "what was there is not fetched again"
    assert not (await known(frontend, "own")).lacks_files
    op = await frontend.remove("own")
    await frontend.store.remove_model("own")
    await done(frontend, op)
    assert frontend.visible() == ["both.bin", "own.gguf"]


async def test_two_models_cannot_have_different_contents_in_one_place(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    def model(name: str, content: bytes) -> str:
        return listing(name, f'filename: own.gguf, uri: "{hub.add(f"/{name}", content)}"')

    await done(frontend, await frontend.configured(model("first", TINY)))

    why = await failed(frontend, await frontend.configured(model("second", TINY + b"more")))

    assert "was brought for the model first" in why
    assert (frontend.library.models / "own.gguf").read_bytes() == TINY


async def test_what_failed_or_was_cancelled_is_begun_again_only_when_it_is_asked_for(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    text = listing("own", f'filename: own.gguf, uri: "{hub.url}/later.gguf"')
    frontend.library.models.mkdir(parents=True)
    (frontend.library.models / "own.yaml").write_text(text)
    folder = ModelFolder(
        frontend.library.models, frontend.store, frontend.holder.frontend, cast(RoutingTable, frontend.rows)
    )

    async def looked() -> OpId:
        await folder.look()
        await frontend.catalogue.refresh()
        await frontend.wanted.look()
        return (await all_ops(frontend))[0]

    first = await looked()
    why = await failed(frontend, first)
    assert why.startswith("own.yaml, line 5: download_files[0]: ")
    assert await looked() == first

    hub.add("/later.gguf", TINY)
    hub.bytes_per_s = 1
    (frontend.library.models / "own.yaml").write_text(f"{text}description: again\n")
    second = await looked()
    assert second != first

    async def at_work() -> bool:
        return (await frontend.step(second)).state is State.RUNNING

    await wait_until(at_work, what="the second to begin")
    await frontend.ops.store.wish(second, Wish.CANCEL)
    frontend.ops.signal.notify()
    assert (await frontend.ended(second)).state is State.CANCELLED
    assert await looked() == second
    stored = (await known(frontend, "own")).stored
    assert "was cancelled" in str(await frontend.wanted.state(stored))

    hub.bytes_per_s = None
    await frontend.ops.store.retry(second, None, "admin")
    frontend.ops.signal.notify()
    await done(frontend, second)
    assert frontend.visible() == ["own.gguf", "own.yaml"]


async def test_two_frontends_that_see_a_model_begin_one_operation(make: Make, hub: HubServer) -> None:
    hub.bytes_per_s = 2000.0
    text = f'name: far\nparameters: {{model: "{hub.add("/x/Tiny.gguf", TINY)}"}}\n'
    async with make() as first, make("second", name="frontend-2") as second:
        op = await first.configured(text)
        await known(second, "far")

        view = await second.wanted.begin("far", "another")

        assert view is not None
        assert view.operation.id == op
        state = await second.wanted.state((await known(second, "far")).stored)
        assert isinstance(state, FilesComing)
        assert state.op == op
        hub.bytes_per_s = None
        await done(first, op)
        assert sorted(first.visible() + second.visible()) == ["far/Tiny.gguf"]
        assert await all_ops(first) == [op]


async def test_what_is_wanted_no_more_is_cancelled_and_a_removed_model_stays_removed(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    hub.bytes_per_s = 1
    op = await frontend.configured(f'name: far\nparameters: {{model: "{hub.add("/x/Tiny.gguf", TINY)}"}}\n')
    assert op is not None
    await frontend.store.remove_model("far")

    await frontend.wanted.look()

    assert (await frontend.ended(op)).state is State.CANCELLED
    assert await frontend.store.models() == []
    assert frontend.visible() == []


async def test_files_of_the_frontends_machine_are_for_those_who_could_read_them(make: Make) -> None:
    async with make(local_sources=False) as frontend:
        text = listing("own", 'filename: own.gguf, uri: "file:///etc/hostname"')
        with pytest.raises(Forbidden, match="does not fetch for others"):
            frontend.wanted.check(text, on_own_machine=False)
        frontend.wanted.check(text, on_own_machine=True)

        assert await frontend.configured(text) is None
        state = await frontend.wanted.state((await known(frontend, "own")).stored)
        assert isinstance(state, FilesNotFetched)
        assert "which is not fetched" in str(state)


async def test_what_is_no_model_leaves_nothing_that_can_be_seen(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    text = f'name: far\nparameters: {{model: "{hub.add("/x/Tiny.gguf", TINY[:-100])}"}}\n'

    why = await failed(frontend, await frontend.configured(text))

    assert "Tiny.gguf" in why
    assert frontend.visible() == []
