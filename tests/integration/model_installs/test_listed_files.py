"""Entries of galleries that list a model's files, as the contract has it, and what becomes of the files."""

import hashlib
from dataclasses import replace

import pytest

from remuda.core.errors import Invalid, NotFound
from remuda.models.reading import read_model
from remuda.ops.model import State
from remuda.scheduler.model import Renaming
from tests.integration.model_installs.conftest import Make
from tests.support.hub import HubRepo, HubServer, hugging_face_server
from tests.support.model_rig import impatient_hubs
from tests.support.models import empty_gguf, tiny_model

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


def entries(hub: HubServer, sha256: str = hashlib.sha256(TINY).hexdigest()) -> str:
    model = hub.add("/far/a.gguf", TINY)
    eyes = hub.add("/away/b.gguf", empty_gguf(PROJECTOR))
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


DOWNLOADS = """\
- name: speech
  config_file:
    backend: whisper
    parameters: {{model: sub/model.bin}}
    download_files:
    - {{filename: sub/model.bin, uri: "{model}", sha256: {sha256}}}
    - {{filename: words.txt, uri: "{words}"}}
- name: voice
  source: "{gguf}"
  overrides:
    download_files: [{{filename: more.bin, uri: "{model}"}}]
    artifacts:
    - name: codec
      source: {{repo: org/codec, allow_patterns: ["*.bin", "cfg/"], ignore_patterns: ["bad*"]}}
- name: foreign
  source: "{gguf}"
  overrides:
    artifacts: [{{name: x, source: {{type: svn, repo: org/codec}}}}]
"""
BIN = b"\1\2\3" * 1000


def downloads(hub: HubServer) -> str:
    return DOWNLOADS.format(
        model=hub.add("/w.bin", BIN),
        words=hub.add("/words.txt", b"a b"),
        gguf=hub.add("/voice.gguf", TINY),
        sha256=hashlib.sha256(BIN).hexdigest(),
    )


async def test_files_of_a_configuration_are_fetched_kept_and_removed_with_the_model(
    make: Make, hub: HubServer
) -> None:
    async with make(gallery=downloads(hub)) as frontend:
        model = await frontend.installed(await frontend.install("speech"))

        config = read_model(model.text)
        assert (config.backend, config.file) == ("whisper", "speech/sub/model.bin")
        assert [one.filename for one in config.download_files] == ["speech/sub/model.bin", "speech/words.txt"]
        assert model.manifest is not None
        assert [file.path for file in model.manifest.files] == ["speech/sub/model.bin", "speech/words.txt"]
        assert frontend.visible() == ["speech/sub/model.bin", "speech/words.txt"]

        await frontend.ended(await frontend.remove("speech"))
        assert frontend.visible() == []


async def test_artifacts_come_with_the_model_as_options_of_its_backend(make: Make, hub: HubServer) -> None:
    held = {"a.bin": b"1", "bad.bin": b"2", "cfg/x.json": b"3", "notes.md": b"4", "tiny.gguf": TINY}
    async with hugging_face_server() as face, impatient_hubs({"HF_ENDPOINT": face.hub.url}) as hubs:
        face.repos["org/codec"] = HubRepo(held)
        async with make(gallery=downloads(hub), hubs=hubs) as frontend:
            model = await frontend.installed(await frontend.install("voice"))

            assert frontend.visible() == [
                "voice/artifacts/codec/a.bin",
                "voice/artifacts/codec/cfg/x.json",
                "voice/more.bin",
                "voice/voice.gguf",
            ]
            config = read_model(model.text)
            assert (config.file, config.options[-1]) == ("voice/voice.gguf", "codec:voice/artifacts/codec")

            step = await frontend.ended(await frontend.install("foreign"))
            assert step.problem is not None
            assert "is of the type 'svn'" in step.problem.message


VARIANTS = """\
- {{name: small, source: "{model}", size: 1 GiB, variants: [{{model: large}}, {{model: gone}}]}}
- {{name: large, source: "{other}", size: 3 GiB}}
- {{name: alone, source: "{other}"}}
"""


async def test_a_variant_is_installed_under_the_name_that_was_asked_for(make: Make, hub: HubServer) -> None:
    gallery = VARIANTS.format(model=hub.add("/small.gguf", TINY), other=hub.add("/large.gguf", TINY))
    async with make(gallery=gallery) as frontend:
        model = await frontend.installed(await frontend.install("small", variant="large"))
        assert (model.name, read_model(model.text).file) == ("small", "small/large.gguf")
        assert model.manifest is not None
        assert model.manifest.choice == "large, as asked for"

        usual = await frontend.ended(await frontend.install("small", "other"))
        assert usual.reason.startswith("small (1.0 GiB), the usual choice: no node is registered")
        with pytest.raises(NotFound, match="small has no variant 'alone'"):
            await frontend.install("small", variant="alone")
        with pytest.raises(Invalid, match="this is a source"):
            await frontend.install(f"{hub.url}/small.gguf", variant="large")
