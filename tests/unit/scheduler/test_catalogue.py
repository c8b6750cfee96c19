"""The models there are, as requests know them."""

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from remuda.core.errors import StoreUnusable
from remuda.models.files import Manifest, ManifestFile
from remuda.models.reading import read_model
from remuda.scheduler import catalogue
from remuda.scheduler.catalogue import ModelCatalogue, ModelFolder
from remuda.scheduler.model import StoredModel
from tests.support.models import tiny_model, tiny_reranker
from tests.unit.models.test_model_folder import LLAMA as SMALL
from tests.unit.models.test_model_folder import safetensors
from tests.unit.scheduler.rig import InlineCatalogue, Rig, a_model

pytestmark = pytest.mark.anyio

BROKEN = StoredModel("broken", "name: [", "r", "added")


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def test_models_are_found_by_name(rig: Rig) -> None:
    await rig.configure(a_model("qwen"), a_model("other"))
    assert sorted(rig.catalogue.models) == ["other", "qwen"]
    found = rig.catalogue.find("qwen")
    assert found is not None
    assert found.config.backend == "llama-cpp"
    assert rig.catalogue.find("nobody") is None


async def test_row_that_cannot_be_read_takes_no_other_along_and_is_told_once(rig: Rig) -> None:
    await rig.configure(a_model("qwen"))
    with capture_logs() as lines:
        await rig.models.put_model(BROKEN)
        for _ in range(3):
            await rig.catalogue.refresh()
    assert list(rig.catalogue.models) == ["qwen"]
    assert [line["model"] for line in lines if line["event"] == "model_not_usable"] == ["broken"]
    assert list(rig.catalogue.unreadable) == ["broken"]
    await rig.models.remove_model("broken")
    await rig.catalogue.refresh()
    assert list(rig.catalogue.unreadable) == []


async def test_row_that_can_be_read_again_is_there_again(rig: Rig) -> None:
    await rig.models.put_model(BROKEN)
    await rig.catalogue.refresh()
    await rig.configure(a_model("broken"))
    assert rig.catalogue.find("broken") is not None


async def test_disabled_model_is_left_out(rig: Rig) -> None:
    await rig.configure(a_model("qwen", "disabled: true\n"))
    assert rig.catalogue.find("qwen") is None


async def test_changed_model_is_another(rig: Rig) -> None:
    await rig.configure(a_model("qwen"))
    before = rig.catalogue.find("qwen")
    await rig.configure(a_model("qwen", "context_size: 512\n"))
    after = rig.catalogue.find("qwen")
    assert before is not None
    assert after is not None
    assert before.config.revision != after.config.revision


async def test_what_was_known_stays_known_while_the_store_is_away(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.configure(a_model("qwen"))

    async def away() -> None:
        raise StoreUnusable("it cannot be reached")

    monkeypatch.setattr(rig.models, "models", away)
    with pytest.raises(StoreUnusable):
        await rig.catalogue.refresh()
    assert rig.catalogue.find("qwen") is not None


async def test_look_that_began_earlier_and_took_longer_changes_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue, read = ModelCatalogue(rig.models, rig.catalogue.models_path), rig.models.models
    asked, go_on = anyio.Event(), anyio.Event()

    async def slow() -> Sequence[StoredModel]:
        found = await read()
        asked.set()
        await go_on.wait()
        return found

    async def inline(read: Callable[[object], object], *given: object) -> object:
        return read(*given)

    monkeypatch.setattr(
        "remuda.scheduler.catalogue.run_sync", inline
    )  # In virtual time there are no threads.
    monkeypatch.setattr(rig.models, "models", slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(catalogue.refresh)
        await asked.wait()
        monkeypatch.setattr(rig.models, "models", read)
        await rig.configure(a_model("qwen"))
        await catalogue.refresh()
        go_on.set()
    assert list(catalogue.models) == ["qwen"]


async def test_file_that_is_here_says_what_the_model_needs(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "qwen.gguf").write_bytes(tiny_model().read_bytes())
    await rig.configure(a_model("qwen"))
    found = rig.catalogue.find("qwen")
    assert found is not None
    assert found.here
    need = found.need()
    assert need.weights_bytes == tiny_model().stat().st_size
    assert need.memory_bytes > need.weights_bytes
    assert need.file == "qwen.gguf"


async def test_what_an_earlier_release_did_not_write_down_is_by_a_frontend_that_has_the_file(
    rig: Rig, tmp_path: Path
) -> None:
    (tmp_path / "qwen.gguf").write_bytes(tiny_model().read_bytes())
    await rig.configure(a_model("qwen"))
    (row,) = await rig.models.models()
    file = ManifestFile(path="qwen.gguf", size=tiny_model().stat().st_size, sha256="0" * 64)
    assert await rig.models.describe_model(row, Manifest(files=(file,)))
    without_it, with_it = ModelCatalogue(rig.models, tmp_path / "none"), ModelCatalogue(rig.models, tmp_path)
    for looking in (without_it, with_it, without_it):
        await looking.refresh()
    found = without_it.find("qwen")
    assert found is not None
    assert not found.here
    assert found.weights.facts is not None
    assert found.weights.facts.layout.architecture == "llama"
    (before,) = await rig.models.models()
    await with_it.refresh()
    assert (await rig.models.models())[0] == before


async def test_a_file_that_is_not_the_models_describes_it_not(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "qwen.gguf").write_bytes(tiny_model().read_bytes())
    await rig.configure(a_model("qwen"))
    (row,) = await rig.models.models()
    other = ManifestFile(path="qwen/qwen.gguf", size=3, sha256="0" * 64)
    assert await rig.models.describe_model(row, Manifest(files=(other,)))
    await ModelCatalogue(rig.models, tmp_path).refresh()
    (row,) = await rig.models.models()
    assert row.manifest is not None
    assert row.manifest.facts is None


async def test_file_that_says_nothing_of_itself_has_a_size(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "qwen.gguf").write_bytes(b"no header at all" * 100)
    await rig.configure(a_model("qwen"))
    found = rig.catalogue.find("qwen")
    assert found is not None
    assert found.need().weights_bytes == 1600


async def test_folder_that_is_here_says_what_the_model_needs(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "org" / "small").mkdir(parents=True)
    (tmp_path / "org/small/config.json").write_text(json.dumps(SMALL))
    safetensors(tmp_path / "org/small/model.safetensors", ("BF16", [100, 64]))
    await rig.configure("name: small\nbackend: vllm\nparameters: {model: org/small}\n")
    found = rig.catalogue.find("small")
    assert found is not None
    assert found.weights.facts is not None
    assert (found.weights.facts.format, found.weights.facts.parameters, found.here) == (
        "safetensors",
        6400,
        True,
    )
    assert found.need().memory_bytes > found.need().weights_bytes > 12800
    assert found.weights.header is None, "its context is that of models without a GGUF file"

    safetensors(tmp_path / "org/small/model.safetensors", ("BF16", [100, 64]), short=1)
    await rig.catalogue.refresh()
    cut = rig.catalogue.find("small")
    assert cut is not None
    assert (cut.here, "cut off" in cut.weights.cut_off) == (False, True)


async def test_file_that_is_elsewhere_is_as_large_as_nodes_say(rig: Rig) -> None:
    await rig.configure(a_model("qwen"))
    found = rig.catalogue.find("qwen")
    assert found is not None
    assert not found.here
    assert (found.need().memory_bytes, found.need(10**9).weights_bytes) == (0, 10**9)


async def test_model_that_the_backend_finds_by_itself_needs_no_file(rig: Rig) -> None:
    await rig.configure("name: remote\nbackend: llama-cpp\nparameters: {model: org/weights}\n")
    found = rig.catalogue.find("remote")
    assert found is not None
    assert found.need().file == ""


def test_catalogue_of_these_tests_differs_only_in_where_it_reads() -> None:
    own = {name for name in vars(InlineCatalogue) if not name.startswith("__")}
    assert own == {"refresh", "weights", "files"}
    assert issubclass(InlineCatalogue, ModelCatalogue)


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time there are no threads."""

    async def run_sync(work: object, *given: object) -> object:
        assert callable(work)
        return work(*given)

    monkeypatch.setattr(catalogue, "run_sync", run_sync)


class Watched(Rig):
    def __init__(self, folder: Path, frontend: str = "f-1") -> None:
        super().__init__(folder)
        self.path = folder
        self.folder = ModelFolder(folder, self.models, frontend, self, self.catalogue.files_refused)
        self._written = 0

    def write(self, name: str, text: str) -> None:
        """With a time of its own, however fast tests are."""
        path = self.path / name
        path.write_text(text)
        self._written += 1
        os.utime(path, ns=(self._written * 10**9, self._written * 10**9))

    async def names(self) -> dict[str, str]:
        return {one.name: one.origin for one in await self.models.models()}

    async def look(self) -> dict[str, str]:
        await self.folder.look()
        return await self.names()


@pytest.fixture
async def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.fixture
def lines() -> Iterator[list[EventDict]]:
    with capture_logs() as captured:
        yield captured


async def test_file_becomes_a_model(watched: Watched) -> None:
    watched.write("a.yaml", a_model("qwen"))
    assert await watched.look() == {"qwen": "file:f-1:a.yaml"}
    [stored] = await watched.models.models()
    assert stored.revision == read_model(a_model("qwen")).revision
    assert watched.changes == 1
    await watched.look()
    assert watched.changes == 1, "what is known already is not written again"


async def test_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert await Watched(tmp_path / "nowhere").look() == {}


async def test_files_that_describe_no_models_are_left_alone(watched: Watched) -> None:
    for name in ("qwen.gguf", "notes.txt", "a.yaml.bak"):
        watched.write(name, a_model("qwen"))
    (watched.path / "folder.yaml").mkdir()
    assert await watched.look() == {}


async def test_changed_file_changes_its_model(watched: Watched) -> None:
    watched.write("a.yaml", a_model("qwen"))
    await watched.look()
    watched.write("a.yaml", a_model("qwen", "context_size: 512\n"))
    await watched.look()
    [stored] = await watched.models.models()
    assert "context_size" in stored.text


async def test_file_that_leaves_takes_its_model_along(watched: Watched) -> None:
    watched.write("a.yaml", a_model("qwen"))
    await watched.look()
    (watched.path / "a.yaml").unlink()
    assert await watched.look() == {}
    assert watched.changes == 2


async def test_file_with_another_name_inside_is_another_model(watched: Watched) -> None:
    watched.write("a.yaml", a_model("old"))
    await watched.look()
    watched.write("a.yaml", a_model("new"))
    assert await watched.look() == {"new": "file:f-1:a.yaml"}


@pytest.mark.parametrize(("old", "new"), [("one", "two"), ("two", "one")])
async def test_change_of_name_that_was_left_half_done_is_finished(
    watched: Watched, old: str, new: str
) -> None:
    """Somebody died after the new model was written and before the old one was removed."""
    watched.write("a.yaml", a_model(new))
    for name in (old, new):
        await watched.models.put_model(StoredModel(name, a_model(name), "r", "file:f-1:a.yaml"))
    assert await watched.look() == {new: "file:f-1:a.yaml"}


async def test_file_that_is_renamed_keeps_its_model(watched: Watched) -> None:
    watched.write("a.yaml", a_model("qwen"))
    await watched.look()
    (watched.path / "a.yaml").rename(watched.path / "b.yaml")
    for _ in range(2):
        assert await watched.look() == {"qwen": "file:f-1:b.yaml"}


async def test_broken_file_is_told_once_and_takes_no_other_along(
    watched: Watched, lines: list[EventDict]
) -> None:
    watched.write("a.yaml", "name: [")
    watched.write("b.yaml", a_model("qwen"))
    for _ in range(3):
        assert await watched.look() == {"qwen": "file:f-1:b.yaml"}
    assert [line["file"] for line in lines if line["event"] == "model_file_refused"] == ["a.yaml"]

    [(file, why)] = watched.catalogue.unusable.items()
    assert file == str(watched.path / "a.yaml")
    assert why.startswith("line 1: not valid YAML")
    watched.write("a.yaml", a_model("llama"))
    await watched.look()
    assert not watched.catalogue.unusable


async def test_file_with_a_name_that_another_model_has_on_the_bus_takes_no_other_along(
    watched: Watched, lines: list[EventDict]
) -> None:
    watched.write("a.yaml", a_model("a.b"))
    watched.write("b.yaml", a_model("a b"))
    watched.write("c.yaml", a_model("qwen"))
    assert sorted(await watched.look()) == ["a.b", "qwen"]
    assert [line["file"] for line in lines if line["event"] == "model_file_refused"] == ["b.yaml"]


async def test_file_that_broke_leaves_its_model_as_it_was(watched: Watched) -> None:
    """It may be in the middle of being written, and its replicas serve."""
    watched.write("a.yaml", a_model("qwen"))
    await watched.look()
    watched.write("a.yaml", "name: qwen\nback")
    assert await watched.look() == {"qwen": "file:f-1:a.yaml"}
    watched.write("a.yaml", a_model("qwen", "context_size: 512\n"))
    await watched.look()
    [stored] = await watched.models.models()
    assert "context_size" in stored.text


async def test_broken_file_at_the_start_leaves_the_model_it_had_described(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    await watched.models.put_model(StoredModel("qwen", a_model("qwen"), "r", "file:f-1:a.yaml"))
    watched.write("a.yaml", "name: [")
    assert await watched.look() == {"qwen": "file:f-1:a.yaml"}


async def test_two_files_for_one_model_and_the_one_that_stays_counts(watched: Watched) -> None:
    watched.write("a.yaml", a_model("qwen"))
    watched.write("b.yaml", a_model("qwen", "context_size: 512\n"))
    assert await watched.look() == {"qwen": "file:f-1:b.yaml"}
    (watched.path / "b.yaml").unlink()
    await watched.look()
    assert await watched.look() == {"qwen": "file:f-1:a.yaml"}


async def test_models_that_were_added_are_none_of_its_business(watched: Watched) -> None:
    await watched.configure(a_model("added"), a_model("too"))
    assert sorted(await watched.look()) == ["added", "too"]


async def test_each_frontend_answers_only_for_its_own_files(tmp_path: Path) -> None:
    one = Watched(tmp_path / "one")
    two_path = tmp_path / "two"
    for path in (one.path, two_path):
        path.mkdir()
    two = ModelFolder(two_path, one.models, "f-2", one)
    one.write("a.yaml", a_model("of-one"))
    (two_path / "a.yaml").write_text(a_model("of-two"))
    await one.look()
    await two.look()
    assert await one.look() == {"of-one": "file:f-1:a.yaml", "of-two": "file:f-2:a.yaml"}
    (one.path / "a.yaml").unlink()
    assert await one.look() == {"of-two": "file:f-2:a.yaml"}
    await two.look()
    assert list(await one.names()) == ["of-two"]


async def test_file_of_another_release_is_read_again_after_a_restart(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.write("a.yaml", a_model("qwen"))
    await watched.look()
    again = ModelFolder(tmp_path, watched.models, "f-1", watched)
    await again.look()
    assert await watched.names() == {"qwen": "file:f-1:a.yaml"}


async def test_file_that_is_too_large_is_no_model(watched: Watched) -> None:
    watched.write("a.yaml", a_model("qwen") + "#" * (1 << 20))
    assert await watched.look() == {}
    assert list(watched.catalogue.unusable.values()) == ["larger than 1 MiB, too large for a model"]


async def test_file_that_cannot_be_read_takes_no_other_along(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root reads everything, so the system's answer is given here."""
    read_text = Path.read_text

    def denied(path: Path, *, errors: str) -> str:
        if path.name == "a.yaml":
            raise PermissionError(errno.EACCES, "Permission denied")
        return read_text(path, errors=errors)

    monkeypatch.setattr(Path, "read_text", denied)
    watched.write("a.yaml", a_model("llama"))
    watched.write("b.yaml", a_model("qwen"))
    assert await watched.look() == {"qwen": "file:f-1:b.yaml"}
    assert list(watched.catalogue.unusable) == [str(watched.path / "a.yaml")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "name: a\nparameters: {model: /etc/passwd}\n",
            "a.yaml, line 2: parameters.model: '/etc/passwd' is outside the models folder",
        ),
        ("name: a\nmmproj: ../b.gguf\n", "a.yaml, line 2: mmproj: '../b.gguf' is outside the models folder"),
        ("name: ../evil\nbackend: echo\n", "a.yaml, line 1: name: '../evil' cannot be the name of a file"),
    ],
)
async def test_file_that_leads_out_of_the_folder_is_refused_by_its_name_and_key(
    watched: Watched, lines: list[EventDict], text: str, said: str
) -> None:
    watched.write("a.yaml", text)
    assert await watched.look() == {}
    [refused] = [line["reason"] for line in lines if line["event"] == "model_file_refused"]
    assert refused.startswith(said)


async def test_model_that_has_an_unwelcome_name_keeps_it(watched: Watched) -> None:
    await watched.models.put_model(StoredModel("what?", "name: what?\n", "r", "file:f-1:a.yaml"))
    watched.write("a.yaml", a_model("what?"))
    await watched.look()
    [stored] = await watched.models.models()
    assert stored.text == a_model("what?")


async def test_file_does_not_replace_a_model_that_was_added(watched: Watched) -> None:
    await watched.configure(a_model("qwen"))
    watched.write("a.yaml", a_model("qwen", "context_size: 512\n"))
    assert await watched.look() == {"qwen": "added"}
    [why] = watched.catalogue.unusable.values()
    assert why.startswith("qwen was added by a command or the API")
    await watched.models.remove_model("qwen")
    assert await watched.look() == {"qwen": "file:f-1:a.yaml"}
    assert not watched.catalogue.unusable


async def test_file_whose_model_was_taken_over_is_set_aside(watched: Watched) -> None:
    for round_ in ("", ".2"):
        watched.write("a.yaml", a_model("qwen"))
        await watched.look()
        [model] = await watched.models.models()
        assert watched.folder.has(model)
        await watched.models.put_model(replace(model, origin="added"))
        assert await watched.folder.set_aside("a.yaml") == str(watched.path / f"a.yaml.imported{round_}")
        assert await watched.look() == {"qwen": "added"}
        await watched.models.remove_model("qwen")


async def test_origin_names_the_frontends_machine(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    folder = ModelFolder(tmp_path, watched.models, "f-1", watched, host="alpha")
    watched.write("a.yaml", a_model("qwen"))
    await folder.look()
    [model] = await watched.models.models()
    assert (model.file, model.frontend, model.host) == ("a.yaml", "f-1", "alpha")
    (tmp_path / "a.yaml").unlink()
    await watched.folder.look()  # As an earlier release wrote it, without the machine.
    assert await watched.names() == {}


def _a_frontend(rig: Rig, folder: Path, name: str) -> ModelCatalogue:
    folder.mkdir(exist_ok=True)
    return ModelCatalogue(rig.models, folder, name)


async def _refreshed(monkeypatch: pytest.MonkeyPatch, *catalogues: ModelCatalogue) -> None:
    async def inline(read: Callable[[object], object], *given: object) -> object:
        return read(*given)

    monkeypatch.setattr("remuda.scheduler.catalogue.run_sync", inline)
    for one in catalogues:
        await one.refresh()


async def test_every_frontend_computes_what_a_model_needs_from_the_same_facts(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "name: huge\nbackend: llama-cpp\ncontext_size: 2048\nparameters: {model: huge.gguf}\n"
    await rig.configure(text)
    with_file = _a_frontend(rig, tmp_path / "with", "f-1")
    without = _a_frontend(rig, tmp_path / "without", "f-2")
    file = with_file.models_path / "huge.gguf"
    file.write_bytes(tiny_model().read_bytes())
    await _refreshed(monkeypatch, with_file, without, with_file)
    size = file.stat().st_size
    here, elsewhere = with_file.models["huge"], without.models["huge"]
    assert (here.here, elsewhere.here) == (True, False)
    assert elsewhere.need(size) == here.need()
    assert elsewhere.weights == here.weights
    assert here.unsaid is None, "it is written down once"


async def test_frontend_with_another_file_of_the_name_takes_over_nothing(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.configure("name: m\nbackend: llama-cpp\nparameters: {model: m.gguf}\n")
    first = _a_frontend(rig, tmp_path / "one", "f-1")
    second = _a_frontend(rig, tmp_path / "two", "f-2")
    (first.models_path / "m.gguf").write_bytes(tiny_model().read_bytes())
    (second.models_path / "m.gguf").write_bytes(tiny_reranker().read_bytes())
    await _refreshed(monkeypatch, first, second, first, second)
    assert second.models["m"].need() == first.models["m"].need()
    before = first.models["m"].weights
    (first.models_path / "m.gguf").write_bytes(tiny_reranker().read_bytes())
    await _refreshed(monkeypatch, first, second)
    assert first.models["m"].weights != before, "the one that wrote it down says what has changed"
    assert second.models["m"].weights == first.models["m"].weights
