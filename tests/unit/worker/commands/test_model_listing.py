"""What a worker tells of its folder of models."""

import os
from pathlib import Path

import pytest

from remuda.models.gguf_file import missing_bytes
from remuda.wire.nodes import ModelFile
from remuda.worker.commands import model_files
from remuda.worker.commands.model_files import Completeness, ListedModels, ModelListing, list_models
from tests.support.commands_rig import rigged
from tests.support.models import tiny_model
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def put(folder: Path, name: str, size: int = 3) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def names(listed: ListedModels) -> list[str]:
    return [file.path for file in listed.files]


def test_files_are_told_with_their_place_and_size(tmp_path: Path) -> None:
    put(tmp_path, "qwen/q4.gguf", 42)
    put(tmp_path, "a.gguf", 7)
    assert list_models(tmp_path) == ListedModels(
        (ModelFile(path="a.gguf", size=7), ModelFile(path="qwen/q4.gguf", size=42))
    )


def test_hidden_and_unfinished_files_are_left_out(tmp_path: Path) -> None:
    for name in (".cache/b.gguf", ".hidden", "a.gguf.partial", "b.part", "c.tmp", "good.gguf"):
        put(tmp_path, name)
    assert names(list_models(tmp_path)) == ["good.gguf"]


def test_links_to_files_and_folders_are_followed_and_dead_ones_left_out(tmp_path: Path) -> None:
    elsewhere, models = tmp_path / "elsewhere", tmp_path / "models"
    models.mkdir()
    put(elsewhere, "big.gguf", 9)
    (models / "one.gguf").symlink_to(elsewhere / "big.gguf")
    (models / "all").symlink_to(elsewhere)
    (models / "dead.gguf").symlink_to(tmp_path / "nothing")
    assert list_models(models).files == (
        ModelFile(path="one.gguf", size=9),
        ModelFile(path="all/big.gguf", size=9),
    )


def test_folder_that_holds_itself_comes_to_an_end(tmp_path: Path) -> None:
    put(tmp_path, "a.gguf")
    (tmp_path / "again").symlink_to(tmp_path)
    listed = list_models(tmp_path)
    assert len(listed.files) == 4
    assert listed.more


def test_of_too_many_files_the_nearest_are_told(tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path, f"deep/{number}.gguf")
    put(tmp_path, "near.gguf")
    listed = list_models(tmp_path, files_max=3)
    assert names(listed) == ["near.gguf", "deep/0.gguf", "deep/1.gguf"]
    assert listed.more


def test_what_lies_too_deep_is_said_to_be_there(tmp_path: Path) -> None:
    put(tmp_path, "a/b/c.gguf")
    listed = list_models(tmp_path, depth_max=2)
    assert listed == ListedModels((), more=True)


def test_pipes_and_names_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    put(tmp_path, os.fsdecode(b"\xff.gguf"))
    assert list_models(tmp_path) == ListedModels()


def test_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list_models(tmp_path / "nowhere") == ListedModels()


async def test_only_a_change_is_news(tmp_path: Path) -> None:
    news: list[int] = []
    listing = ModelListing(tmp_path, lambda: news.append(1))
    await listing.look()
    assert news == []
    put(tmp_path, "a.gguf")
    await listing.look()
    await listing.look()
    assert len(news) == 1
    put(tmp_path, "a.gguf", 5)
    await listing.look()
    assert len(news) == 2
    assert listing.listed.files == (ModelFile(path="a.gguf", size=5),)


async def test_reports_tell_the_folder_and_its_files(tmp_path: Path) -> None:
    put(tmp_path / "models", "a.gguf", 4)
    async with rigged(tmp_path) as rig:
        await wait_until(lambda: rig.commands.report().model_files)
        told = rig.commands.report()
    assert told.models_path == str(tmp_path / "models")
    assert told.model_files == (ModelFile(path="a.gguf", size=4),)
    assert not told.model_files_more


def test_file_that_was_not_copied_to_its_end_is_told_apart_and_read_again_once_it_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, path, read = tiny_model().read_bytes(), tmp_path / "m.gguf", list[int]()

    def counted(file: Path) -> int:
        read.append(file.stat().st_size)
        return missing_bytes(file)

    monkeypatch.setattr(model_files, "missing_bytes", counted)
    completeness = Completeness()
    for length in (len(whole) // 2, len(whole) - 200, len(whole) - 100):
        path.write_bytes(whole[:length])
        listed = list_models(tmp_path, completeness)
        assert (names(listed), [one.path for one in listed.cut_off]) == ([], ["m.gguf"])
        assert listed.cut_off[0].size == length
    assert len(read) == 1, "while it grows it is not read again"
    list_models(tmp_path, completeness)
    assert len(read) == 2, "it rests"
    path.write_bytes(whole)
    assert names(list_models(tmp_path, completeness)) == ["m.gguf"]
