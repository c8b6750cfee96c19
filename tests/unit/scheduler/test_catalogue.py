"""The models there are, as requests know them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from remuda.core.errors import StoreUnusable
from remuda.scheduler.catalogue import ModelCatalogue
from remuda.scheduler.model import StoredModel
from tests.support.models import tiny_model
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


async def test_file_that_says_nothing_of_itself_has_a_size(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "qwen.gguf").write_bytes(b"no header at all" * 100)
    await rig.configure(a_model("qwen"))
    found = rig.catalogue.find("qwen")
    assert found is not None
    assert found.need().weights_bytes == 1600


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
    assert own == {"refresh", "weights"}
    assert issubclass(InlineCatalogue, ModelCatalogue)
