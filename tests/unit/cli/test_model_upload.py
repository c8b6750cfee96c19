"""What a folder has to be before any of it is uploaded, and what goes with a file."""

import shutil
from pathlib import Path

import pytest

from remuda.cli.model_files import local_model
from remuda.cli.model_upload import model_files
from remuda.core.errors import Invalid
from tests.support.models import tiny_model
from tests.unit.models.ggufs import Value, gguf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "mine"
    made.mkdir()
    shutil.copyfile(tiny_model(), made / "tiny.gguf")
    return made


def test_folder_with_one_model_is_sent_whole(folder: Path) -> None:
    (folder / "README.md").write_text("about it")
    assert [file.path for file in model_files(folder)] == ["README.md", "tiny.gguf"]


def test_a_projector_of_another_model_goes_nowhere_with_a_file(folder: Path, tmp_path: Path) -> None:
    eyes: dict[str, Value] = {"general.architecture": "clip", "clip.vision.projection_dim": 65536}
    (folder / "mmproj.gguf").write_bytes(gguf(eyes).getvalue())
    assert [file.path for file in model_files(folder / "tiny.gguf")] == ["tiny.gguf"]

    added = local_model(folder / "tiny.gguf", None, None, tmp_path / "models")
    assert "mmproj" not in added.text
    assert added.note.startswith("mmproj.gguf is not used: ")
    assert [path.name for path in added.brought] == ["tiny.gguf"]


def test_folder_with_several_models_is_refused(folder: Path) -> None:
    shutil.copyfile(folder / "tiny.gguf", folder / "other.gguf")
    with pytest.raises(Invalid, match=r"several models: other\.gguf, tiny\.gguf"):
        model_files(folder)


def test_folder_with_a_model_that_is_cut_off_is_refused(folder: Path) -> None:
    content = (folder / "tiny.gguf").read_bytes()
    (folder / "tiny.gguf").write_bytes(content[: len(content) // 2])
    with pytest.raises(Invalid, match="is cut off"):
        model_files(folder)


def test_folder_with_weights_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    with pytest.raises(Invalid, match=r"model\.safetensors: there is no model in it"):
        model_files(tmp_path)
