"""Entries of galleries that list a model's files, as the contract has it, and what becomes of the files."""

import hashlib
import struct
from dataclasses import replace

import pytest

from remuda.core.errors import Invalid
from remuda.models.reading import read_model
from remuda.ops.model import State
from remuda.scheduler.model import Renaming
from tests.integration.model_installs.conftest import Make
from tests.support.hub import HubServer
from tests.support.models import tiny_model

pytestmark = pytest.mark.anyio

TINY = tiny_model().read_bytes()
PROJECTOR = {"general.architecture": "clip", "general.type": "mmproj"}
ENTRY = """\
- name: seeing
  config_file: {{name: base, backend: llama-cpp, context_size: 512}}
  overrides:
    parameters: {{model: llama/seeing.gguf, temperature: 0.3}}
    mmproj: eyes.gguf
    known_usecases: [chat, vision]
  files:
  - {{filename: llama/seeing.gguf, uri: "{model}", sha256: {sha256}}}
  - {{filename: eyes.gguf, uri: "{eyes}"}}
- name: none
  config_file: {{backend: vllm}}
- name: local
  files: [{{filename: passwd, uri: "file:///etc/passwd"}}]
"""


def _gguf(keys: dict[str, str]) -> bytes:
    """A file of no tensors."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys))
    return head + b"".join(_text(key) + struct.pack("<I", 8) + _text(value) for key, value in keys.items())


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def entries(hub: HubServer, sha256: str = hashlib.sha256(TINY).hexdigest()) -> str:
    model = hub.add("/far/a.gguf", TINY)
    eyes = hub.add("/away/b.gguf", _gguf(PROJECTOR))
    return ENTRY.format(model=model, eyes=eyes, sha256=sha256)


async def test_every_file_comes_from_its_own_source_and_is_named_where_it_is(
    make: Make, hub: HubServer
) -> None:
    async with make(gallery=entries(hub)) as frontend:
        model = await frontend.installed(await frontend.install("seeing", "eye"))

        assert frontend.visible() == ["eye/eyes.gguf", "eye/llama/seeing.gguf"]
        config = read_model(model.text)
        assert (config.name, config.file, config.mmproj) == ("eye", "eye/llama/seeing.gguf", "eye/eyes.gguf")
        assert (config.context_size, config.parameters.temperature) == (512, 0.3)
        assert config.known_usecases == ("chat", "vision")


async def test_a_checksum_of_the_gallery_is_kept_to(make: Make, hub: HubServer) -> None:
    async with make(gallery=entries(hub, sha256="0" * 64)) as frontend:
        step = await frontend.ended(await frontend.install("seeing"))

        assert step.state is State.FAILED
        assert frontend.visible() == []


@pytest.mark.parametrize(
    ("name", "said"),
    [("none", "remuda@none names no files"), ("local", "may not name a file of this machine")],
)
async def test_what_cannot_be_fetched_is_refused_at_once(
    make: Make, hub: HubServer, name: str, said: str
) -> None:
    async with make(gallery=entries(hub)) as frontend:
        with pytest.raises(Invalid, match=said):
            await frontend.install(name)


async def test_a_renamed_model_keeps_its_manifest_and_its_files(make: Make, hub: HubServer) -> None:
    async with make(gallery=entries(hub)) as frontend:
        model = await frontend.installed(await frontend.install("seeing"))
        files = frontend.visible()

        await frontend.store.rename_model(Renaming(model, replace(model, name="other")))
        await frontend.tidy()

        [renamed] = await frontend.store.models()
        assert (renamed.name, renamed.manifest, renamed.kept_by) == ("other", model.manifest, model.kept_by)
        assert frontend.visible() == files
