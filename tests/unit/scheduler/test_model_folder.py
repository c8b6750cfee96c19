"""What is put into the folder becomes a model, and what leaves it is none."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from remuda.models.reading import read_model
from remuda.scheduler import model_folder
from remuda.scheduler.model import StoredModel
from remuda.scheduler.model_folder import ModelFolder
from tests.unit.scheduler.rig import Rig, a_model

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time there are no threads."""

    async def run_sync(work: object) -> object:
        assert callable(work)
        return work()

    monkeypatch.setattr(model_folder, "run_sync", run_sync)


class Watched(Rig):
    def __init__(self, folder: Path, frontend: str = "f-1") -> None:
        super().__init__(folder)
        self.path = folder
        self.folder = ModelFolder(folder, self.models, frontend, self)
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "name: a\nparameters: {model: /etc/passwd}\n",
            "a.yaml: parameters.model: '/etc/passwd' is outside the models folder",
        ),
        ("name: a\nmmproj: ../b.gguf\n", "a.yaml: mmproj: '../b.gguf' is outside the models folder"),
        ("name: ../evil\nbackend: echo\n", "a.yaml: name: '../evil' cannot be the name of a file"),
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
