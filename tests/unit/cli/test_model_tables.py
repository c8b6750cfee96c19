"""The table of models: problems, and what a wide one has."""

from datetime import timedelta

from rich.console import Console

from remuda.cli.model_tables import model_table
from remuda.wire.serving import ModelItem
from tests.unit.cli.test_models import NOON, shown


def test_models_that_failed_are_listed_as_such_with_the_reason() -> None:
    item = ModelItem(name="qwen", problem="it could not be loaded on attic: the file is broken")
    table = shown(model_table([item, ModelItem(name="bge")], NOON, Console(width=200)))
    assert [line.split()[:2] for line in table.splitlines()[1:3]] == [["qwen", "failed"], ["bge", "not"]]
    assert "qwen: it could not be loaded on attic: the file is broken" in table


def test_model_whose_backend_is_not_known_is_marked_with_how_to_find_another() -> None:
    item = ModelItem(name="qwen", backend="lama-cpp", backend_unknown=True)
    table = shown(model_table([item], NOON, Console(width=200)))
    assert "backend not known" in table.splitlines()[1]
    assert "no node has the backend lama-cpp, and no gallery offers it: see remuda backends search" in table


def test_wide_list_has_quantisations_and_sources() -> None:
    item = ModelItem(name="qwen", quantisation="Q4_K_M", source="hf://Qwen/Qwen3-0.6B-GGUF")
    wide = shown(model_table([item], NOON, Console(width=200), wide=True))
    assert ("Q4_K_M" in wide, "hf://Qwen/Qwen3-0.6B-GGUF" in wide) == (True, True)
    assert "Q4_K_M" not in shown(model_table([item], NOON, Console(width=200)))


def test_a_model_that_failed_says_how_long_ago() -> None:
    item = ModelItem(name="qwen", problem="it broke", failed_at=NOON - timedelta(minutes=5))
    table = shown(model_table([item], NOON, Console(width=200)))
    assert "failed 5m ago" in table.splitlines()[1]
