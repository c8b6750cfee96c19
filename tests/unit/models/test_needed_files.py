"""Which files a load needs, exactly."""

from pathlib import Path

import pytest

from remuda.models.config import ModelConfig
from remuda.models.files import Manifest, ManifestFile
from remuda.models.needed_files import needed_files
from remuda.models.reading import read_model


def config(text: str) -> ModelConfig:
    return read_model(f"name: m\nbackend: llama-cpp\n{text}", where="m.yaml")


def paths(folder: Path, text: str, manifest: Manifest | None = None) -> list[str]:
    return [file.path for file in needed_files(folder, config(text), manifest)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in (
        "a.gguf",
        "other.gguf",
        "big-00001-of-00002.gguf",
        "big-00002-of-00002.gguf",
        "qwen/q.gguf",
        "qwen/mmproj.gguf",
        "qwen/lora.gguf",
        "voice.onnx",
        "voice.onnx.json",
        "hf/config.json",
        "hf/model.safetensors",
        "hf/model.safetensors.sha256",
        "hf/sub/tokenizer.json",
        "hf/.hidden",
        "vae/vae.bin",
        "cache.bin",
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(path.encode())
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("parameters: {model: a.gguf}", ["a.gguf"]),
        (
            "parameters: {model: big-00001-of-00002.gguf}",
            ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"],
        ),
        (
            "parameters: {model: qwen/q.gguf}\nmmproj: qwen/mmproj.gguf\ndraft_model: a.gguf",
            ["a.gguf", "qwen/mmproj.gguf", "qwen/q.gguf"],
        ),
        ("parameters: {model: qwen/q.gguf}\nmmproj: mmproj.gguf", ["qwen/mmproj.gguf", "qwen/q.gguf"]),
        ("parameters: {model: qwen/q.gguf}\nlora_adapters: [lora.gguf]", ["qwen/lora.gguf", "qwen/q.gguf"]),
        ("parameters: {model: voice.onnx}", ["voice.onnx", "voice.onnx.json"]),
        (
            "parameters: {model: hf}",
            ["hf/config.json", "hf/model.safetensors", "hf/sub/tokenizer.json"],
        ),
        ("parameters: {model: a.gguf}\noptions: ['vae:vae', 'x:y']", ["a.gguf", "vae/vae.bin"]),
        ("parameters: {model: a.gguf}\nprompt_cache_path: cache.bin", ["a.gguf"]),
        ("parameters: {model: a.gguf, tokenizer: not-there}", ["a.gguf"]),
        ("parameters: {model: not-there.gguf}\nmmproj: a.gguf", []),
    ],
)
def test_needed_are_the_files_that_the_configuration_names(
    folder: Path, text: str, expected: list[str]
) -> None:
    assert paths(folder, text) == expected


def test_manifest_names_files_also_where_they_are_not_here(folder: Path) -> None:
    size = (folder / "a.gguf").stat().st_size
    files = tuple(
        ManifestFile(path=path, size=size, sha256="ab" * 32) for path in ("a.gguf", "other.gguf", "z.gguf")
    )
    found = needed_files(folder, config("parameters: {model: a.gguf}"), Manifest(files=files))
    assert [(file.path, file.here) for file in found] == [
        ("a.gguf", True),
        ("other.gguf", False),  # It has another size.
        ("z.gguf", False),
    ]
    assert {file.sha256 for file in found} == {"ab" * 32}
