"""One model, as people are shown it."""

from datetime import UTC, datetime

import pytest

from remuda.cli.model_details import count, model_page
from remuda.wire.serving import ModelDetails, ModelFileView, ModelItem

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def page(model: ModelItem) -> dict[str, str]:
    return {line[:14].strip(): line[15:] for line in model_page(model, NOON)}


def test_only_what_is_known_is_shown() -> None:
    assert list(page(ModelItem(name="a", origin="added"))) == ["name", "configured in", "replica"]


def test_what_belongs_to_a_model_is_listed() -> None:
    details = ModelDetails(
        format="gguf",
        parameters=8_190_735_360,
        precision="Q4_K_M",
        context_length=40960,
        projector="mmproj-a.gguf",
        downloads=(ModelFileView(path="a.gguf", source="hf://a/b", sha256="b179" * 16),),
        artifacts=(ModelFileView(path="main", source="huggingface:a/b"),),
    )
    shown = page(ModelItem(name="a", origin="file:f-1@alpha:a.yaml", details=details))

    assert shown["configured in"] == "a.yaml in the models folder on alpha"
    assert (shown["parameters"], shown["precision"], shown["trained for"]) == (
        "8.19B",
        "Q4_K_M",
        "40960 tokens",
    )
    assert shown["chat template"] == "none in the file"
    assert shown["projector"] == "mmproj-a.gguf lies beside it; set `mmproj` to use it"
    assert shown["download"] == "a.gguf from hf://a/b (sha256 b179b179b179...)"
    assert shown["artifact"] == "main from huggingface:a/b"


def test_where_the_bytes_of_a_model_came_from_is_shown() -> None:
    details = ModelDetails(
        source="hf://a/b",
        source_revision="0123abc",
        choice="Q4_K_M, which every node can hold",
        notes=("a/b was renamed to c/d",),
        installed_files=(ModelFileView(path="m/m.gguf", sha256="b179" * 16),),
    )
    shown = page(ModelItem(name="m", origin="added", details=details))
    assert shown["source"] == "hf://a/b (at 0123abc)"
    assert shown["chosen"] == "Q4_K_M, which every node can hold"
    assert shown["note"] == "a/b was renamed to c/d"
    assert shown["installed"] == "m/m.gguf (sha256 b179b179b179...)"
    uploaded = ModelDetails(source="upload:0123abcd", source_revision="0123abcd")
    shown = page(ModelItem(name="m", origin="added", details=uploaded))
    assert shown["source"] == "uploaded to the frontend (upload:0123abcd)"


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, ""), (999, "999"), (134_515_008, "135M"), (1_235_814_432, "1.24B"), (70_553_706_496, "70.6B")],
)
def test_sizes_are_said_as_models_are_called(number: int, said: str) -> None:
    assert count(number) == said
