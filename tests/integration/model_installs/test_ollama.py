"""A model of Ollama's library with all that can belong to it, from a real registry."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda.models.reading import read_model
from tests.integration.model_installs.conftest import Make
from tests.support.images import MANIFEST, Blob, BuiltImage
from tests.support.models import empty_gguf, tiny_model
from tests.support.registry import RegistryServer, registry_server

pytestmark = pytest.mark.anyio

OLLAMA = "application/vnd.ollama.image."
TEMPLATE = b"{{ if .System }}[{{ .System }}]{{ end }}{{ .Prompt }} => {{ .Response }}"
LORA = empty_gguf({"general.architecture": "llama", "general.type": "adapter"})
EYES = empty_gguf({"general.architecture": "clip", "general.type": "mmproj"})
BARE = empty_gguf({"general.architecture": "llama"})


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server


def push(registry: RegistryServer, name: str, *layers: tuple[str, bytes]) -> str:
    """The model's source."""
    blobs = tuple(Blob(content, f"{OLLAMA}{kind}") for kind, content in layers)
    config = Blob(b"{}", "application/vnd.docker.container.image.v1+json")
    listed = {"config": config.descriptor(), "layers": [one.descriptor() for one in blobs]}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, **listed}
    registry.pusher.push(name, "1b", BuiltImage(Blob(json.dumps(manifest).encode(), MANIFEST), config, blobs))
    return f"ollama://{registry.name}/{name}:1b"


async def test_everything_of_a_model_gets_its_place(make: Make, registry: RegistryServer) -> None:
    source = push(
        registry,
        "me/all",
        ("model", tiny_model().read_bytes()),
        ("projector", EYES),
        ("adapter", LORA),
        ("draft", BARE),
        ("template", b"{{ .Prompt }}"),
        ("system", b"Be brief."),
        ("params", b'{"stop": ["<|end|>"], "num_ctx": 256}'),
    )
    async with make() as frontend:
        model = await frontend.installed(await frontend.install(source, "all"))

        config = read_model(model.text)
        assert config.file == "all/all-1b.gguf"
        assert config.mmproj == "all/all-1b-mmproj.gguf"
        assert config.lora_adapters == ("all/all-1b-adapter.gguf",)
        assert config.draft_model == "all/all-1b-draft.gguf"
        assert config.template.use_tokenizer_template, "its own template wins"
        assert (config.template.chat, config.system_prompt) == ("", "Be brief.")
        assert (config.stopwords, config.context_size) == (("<|end|>",), 256)
        assert model.manifest is not None
        assert len(model.manifest.files) == 4


async def test_a_model_without_a_template_gets_ollamas_or_is_told_why_not(
    make: Make, registry: RegistryServer, tmp_path: Path
) -> None:
    good = push(registry, "me/good", ("model", BARE), ("template", TEMPLATE))
    odd = push(registry, "me/odd", ("model", BARE), ("template", b"{{ title .Prompt }}"))
    async with make() as frontend:
        model = await frontend.installed(await frontend.install(good, "good"))
        assert read_model(model.text).template.chat == TEMPLATE.decode()

        step = await frontend.ended(await frontend.install(odd, "odd"))
        assert "cannot be used: line 1: title is not supported" in step.reason


async def test_a_projector_that_does_not_fit_is_told_of(make: Make, registry: RegistryServer) -> None:
    eyes = empty_gguf({"general.architecture": "clip", "clip.vision.projection_dim": 65536})
    source = push(registry, "me/blind", ("model", tiny_model().read_bytes()), ("projector", eyes))
    async with make() as frontend:
        op = await frontend.install(source, "blind")
        step = await frontend.ended(op)
        model = await frontend.installed(op)

        assert read_model(model.text).mmproj == ""
        assert "blind-1b-mmproj.gguf is not used: it is a projector for" in step.reason
