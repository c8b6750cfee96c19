"""model.delete: files go, and only inside the folder of models."""

from contextlib import suppress
from pathlib import Path

import pytest

from remuda.core.errors import Invalid, Rejected
from remuda.wire.models import ModelDelete, ModelDeleteReply
from remuda.worker.commands.model_files import ModelFiles
from remuda.worker.files.keys import partial_name
from remuda.worker.staging.placed import PlacedFiles
from remuda.worker.staging.placing import store_root
from tests.support.path_attacks import ATTACKS, SwapsAt, hostile_tree

pytestmark = pytest.mark.anyio


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for name in (
        "qwen/a/weights.gguf",
        "qwen2/b",
        "llama.gguf",
        "llama.gguf.yaml",
        "llama",
        "llamas",
        "o/m/f",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    return folder


async def delete(models: Path, name: str) -> ModelDeleteReply:
    return await ModelFiles(models).delete(ModelDelete(model_name=name))


def left(models: Path) -> set[str]:
    return {str(path.relative_to(models)) for path in models.rglob("*") if not path.is_dir()}


async def test_models_folder_goes_with_all_in_it(models: Path) -> None:
    """Row A153."""
    reply = await delete(models, "qwen")

    assert reply.success
    assert not (models / "qwen").exists()
    assert (models / "qwen2/b").exists()


async def test_model_that_is_a_file_goes_with_what_has_its_name_and_a_suffix(models: Path) -> None:
    await delete(models, "llama")

    assert left(models) == {"qwen/a/weights.gguf", "qwen2/b", "llamas", "o/m/f"}


async def test_model_with_an_organisation_goes_alone(models: Path) -> None:
    await delete(models, "o/m")

    assert (models / "o").exists()
    assert "o/m/f" not in left(models)


async def test_nothing_there_is_as_good_as_removed(models: Path) -> None:
    before = left(models)

    assert (await delete(models, "nonesuch")).success
    assert (await delete(models, "none/such")).success
    assert (await ModelFiles(models / "no folder").delete(ModelDelete(model_name="x"))).success
    assert left(models) == before


@pytest.mark.parametrize("name", ["", ".", "./", "..", "../precious", "qwen/../../precious", "/etc", "a\0b"])
async def test_name_that_leads_elsewhere_is_refused(models: Path, name: str) -> None:
    with pytest.raises(Invalid):
        await delete(models, name)

    assert (models.parent / "precious" / "file").exists()
    assert (models / "qwen").exists()


async def test_link_out_of_the_folder_goes_and_what_it_leads_to_stays(models: Path) -> None:
    (models / "linked").symlink_to(models.parent / "precious")

    await delete(models, "linked")

    assert not (models / "linked").is_symlink()
    assert (models.parent / "precious" / "file").exists()


async def test_link_on_the_way_is_not_followed_out_of_the_folder(models: Path) -> None:
    (models / "linked").symlink_to(models.parent)

    with pytest.raises(Invalid):
        await delete(models, "linked/precious")

    assert (models.parent / "precious" / "file").exists()


async def test_name_with_wildcards_means_itself(models: Path) -> None:
    before = left(models)
    await delete(models, "*")

    assert left(models) == before


async def test_checksums_and_partial_uploads_of_a_model_go_with_it(models: Path) -> None:
    for name in ("llama.gguf.sha256", "llama.gguf.sha256.target", partial_name("llama.gguf", "0" * 64)):
        (models / name).write_text("x")
    others = partial_name("llamas", "0" * 64)
    (models / others).write_text("x")

    await delete(models, "llama.gguf")

    assert left(models) == {"qwen/a/weights.gguf", "qwen2/b", "llama", "llamas", "o/m/f", others}


async def test_what_was_fetched_from_object_storage_for_a_model_goes_with_it(models: Path) -> None:
    cached = models.parent / "cache/models/qwen/weights.gguf"
    cached.parent.mkdir(parents=True)
    cached.write_text("x")
    kept = models.parent / "cache/models/qwen2"
    kept.mkdir()

    await delete(models, "qwen")

    assert not cached.parent.exists()
    assert kept.exists()


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_name_of_a_model_removes_anything_outside(tmp_path: Path, attack: str) -> None:
    tree = hostile_tree(tmp_path / "worker")

    with suppress(Rejected):
        await delete(tree.root / "models", ATTACKS[attack])
    named = ModelDelete(model_name="m", files=(ATTACKS[attack],), any_files=True)
    with suppress(Rejected):
        await ModelFiles(tree.root / "models").delete(named)

    assert tree.untouched()


async def test_a_folder_swapped_for_a_link_at_any_moment_removes_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = hostile_tree(tmp_path / "worker")
    models = tree.root / "models"
    swaps = SwapsAt(monkeypatch, models / "m", tree.outside)
    moment, swapped = 0, True
    while swapped:
        swaps.arm(moment)
        (models / "m/folder").mkdir()
        (models / "m/folder/secret").write_bytes(b"harmless")
        with suppress(Rejected):
            await delete(models, "m/folder")
        swapped = swaps.swap_before == -1
        moment += 1
        assert tree.untouched()

    assert moment > 2
    assert not (models / "m/folder").exists()


async def test_of_the_files_that_a_frontend_names_only_fetched_ones_go(models: Path) -> None:
    before = left(models)
    (models / "llama.gguf.sha256").write_text("0" * 64)
    files = ("llama.gguf", "qwen/a/weights.gguf", "qwen2/b", "none/such")
    PlacedFiles(models, store_root(models)).note({path: models / path for path in files[:3]})
    (models / "qwen2/b").unlink()
    (models / "qwen2/b").write_text("a person's, by now")

    assert (await ModelFiles(models).delete(ModelDelete(model_name="llama", files=files))).success

    assert left(models) == before - set(files[:2])
    assert not (models / "qwen").exists()


async def test_files_of_a_person_go_only_if_they_are_meant(models: Path) -> None:
    before, files = left(models), ("llama.gguf", "qwen/a/weights.gguf")
    await ModelFiles(models).delete(ModelDelete(model_name="llama", files=files))
    assert left(models) == before

    await ModelFiles(models).delete(ModelDelete(model_name="llama", files=files, any_files=True))
    assert left(models) == before - set(files)

    bad = ModelDelete(model_name="x", files=("llama", "../precious/file"), any_files=True)
    with pytest.raises(Invalid):
        await ModelFiles(models).delete(bad)
    assert "llama" in left(models)
