"""Models from Ollama's library, from other registries, and from GitHub."""

import hashlib
import json
from pathlib import Path

import pytest

from remuda.core.errors import Invalid, NotFound, Unauthorized
from remuda.hubs.hubs import Hubs
from remuda.oci.blobs import BlobStore
from remuda.oci.errors import ContentRefused
from tests.integration.hubs.fetching import fetched, resolved, write_credentials
from tests.support.hub import HubServer
from tests.support.images import MANIFEST, Blob, BuiltImage, layer, noise, tar_of
from tests.support.registry import PASSWORD, USER, RegistryServer, registry_server

pytestmark = pytest.mark.anyio

OLLAMA = "application/vnd.ollama.image."
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
WEIGHTS = noise(300_000, 1)
EYES = noise(20_000, 2)
CONFIG = Blob(b'{"model_format":"gguf"}', "application/vnd.docker.container.image.v1+json")


def artifact(layers: list[Blob], kind: str = MANIFEST, titles: dict[str, str] | None = None) -> BuiltImage:
    listed = [
        one.descriptor(annotations={"org.opencontainers.image.title": title})
        if (title := (titles or {}).get(one.digest))
        else one.descriptor()
        for one in layers
    ]
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": CONFIG.descriptor(), "layers": listed}
    return BuiltImage(Blob(json.dumps(manifest).encode(), kind), CONFIG, tuple(layers))


def ollama(*layers: tuple[str, bytes]) -> BuiltImage:
    return artifact([Blob(content, f"{OLLAMA}{kind}") for kind, content in layers], DOCKER_MANIFEST)


async def test_a_model_of_ollama_comes_with_its_template_and_parameters(
    hubs: Hubs, registry: RegistryServer, store: BlobStore
) -> None:
    built = ollama(
        ("model", WEIGHTS),
        ("projector", EYES),
        ("template", b"{{ .Prompt }}"),
        ("system", b"Be brief."),
        ("params", b'{"stop": ["<|end|>"], "temperature": 0.5, "num_ctx": 4096}'),
        ("license", b"Apache-2.0"),
    )
    registry.pusher.push("library/tiny3.2", "1b", built)

    found = await resolved(hubs, "ollama://tiny3.2:1b")

    assert found.revision == built.manifest.digest
    assert [(file.path, file.role) for file in found.files] == [
        ("tiny3.2-1b.gguf", ""),
        ("tiny3.2-1b-mmproj.gguf", "mmproj"),
    ]
    assert (found.hints.template, found.hints.system) == ("{{ .Prompt }}", "Be brief.")
    assert found.hints.parameters == {"stop": ["<|end|>"], "temperature": 0.5, "num_ctx": 4096}
    brought = await fetched(hubs, "ollama://tiny3.2:1b", store)
    assert brought == {"tiny3.2-1b.gguf": WEIGHTS, "tiny3.2-1b-mmproj.gguf": EYES}


async def test_what_ollamas_library_lacks_or_keeps_otherwise_is_told(
    hubs: Hubs, registry: RegistryServer
) -> None:
    with pytest.raises(NotFound, match="has no model library/nothing with the tag latest"):
        await resolved(hubs, "ollama://nothing")
    registry.pusher.push("library/cloud", "latest", ollama(("license", b"x")))
    with pytest.raises(Invalid, match="it has no file of weights"):
        await resolved(hubs, "ollama://cloud")
    registry.pusher.push("library/split", "latest", ollama(("tensor", b"x"), ("params", b"{}")))
    with pytest.raises(Invalid, match="it is kept as single tensors"):
        await resolved(hubs, "ollama://split")
    registry.pusher.push("library/odd", "latest", ollama(("model", b"x"), ("params", b"[1]")))
    with pytest.raises(ContentRefused, match="are not a JSON object"):
        await resolved(hubs, "ollama://odd")


async def test_an_artifact_with_named_files_is_a_model(
    hubs: Hubs, registry: RegistryServer, store: BlobStore
) -> None:
    layers = [Blob(WEIGHTS, "application/octet-stream"), Blob(b"{}", "application/json")]
    titles = {layers[0].digest: "sub/x.gguf", layers[1].digest: "config.json"}
    registry.pusher.push("me/named", "v1", artifact(layers, titles=titles))

    source = f"oci://{registry.name}/me/named:v1"
    assert await fetched(hubs, source, store) == {"sub/x.gguf": WEIGHTS, "config.json": b"{}"}

    escaping = artifact(layers, titles={**titles, layers[0].digest: "../x.gguf"})
    registry.pusher.push("me/escaping", "v1", escaping)
    with pytest.raises(Invalid, match="a file that cannot be used"):
        await resolved(hubs, f"oci://{registry.name}/me/escaping:v1")


async def test_other_forms_of_models_in_registries_are_known(
    hubs: Hubs, registry: RegistryServer, store: BlobStore
) -> None:
    packed = [
        Blob(WEIGHTS, "application/vnd.docker.ai.gguf.v3"),
        Blob(EYES, "application/vnd.docker.ai.mmproj"),
    ]
    registry.pusher.push("ai/smollm2", "latest", artifact(packed))
    registry.pusher.push("me/ollama-like", "v1", ollama(("model", WEIGHTS)))
    registry.pusher.push(
        "me/image", "v1", artifact([Blob(b"x", "application/vnd.oci.image.layer.v1.tar+gzip")])
    )

    brought = await fetched(hubs, f"oci://{registry.name}/ai/smollm2", store)
    assert brought == {"smollm2.gguf": WEIGHTS, "smollm2-mmproj.gguf": EYES}
    assert list(await fetched(hubs, f"oci://{registry.name}/me/ollama-like:v1", store)) == [
        "ollama-like-v1.gguf"
    ]
    with pytest.raises(ContentRefused, match="is cut off"):
        await resolved(hubs, f"oci://{registry.name}/me/image:v1")


DOCKER = "application/vnd.docker.ai"
POD = "application/vnd.cncf.model"


def _shards(kind: str) -> list[Blob]:
    return [Blob(WEIGHTS, f"{DOCKER}.{kind}"), Blob(EYES, f"{DOCKER}.{kind}")]


@pytest.mark.parametrize(
    ("layers", "titles", "expected"),
    [
        (
            _shards("gguf.v3"),
            {},
            {"m-00001-of-00002.gguf": WEIGHTS, "m-00002-of-00002.gguf": EYES},
        ),
        (
            [*_shards("safetensors"), layer({"config.json": b"{}", "x.bin": b"x"}, "")],
            {},
            {
                "model-00001-of-00002.safetensors": WEIGHTS,
                "model-00002-of-00002.safetensors": EYES,
                "config.json": b"{}",
            },
        ),
        (
            [Blob(WEIGHTS, f"{POD}.weight.v1.raw"), Blob(b"{}", f"{POD}.weight.config.v1.raw")],
            {0: "sub/a.gguf", 1: "config.json"},
            {"sub/a.gguf": WEIGHTS, "config.json": b"{}"},
        ),
        (
            [Blob(tar_of({"./kit/a.gguf": WEIGHTS}), "application/vnd.kitops.modelkit.model.v1.tar")],
            {},
            {"a.gguf": WEIGHTS},
        ),
        (
            [
                layer({"bin/sh": b"x", "models/old.txt": b"y"}),
                layer({"models/a-00001-of-00002.gguf": EYES, "models/a-00002-of-00002.gguf": WEIGHTS}),
                layer({"etc/passwd": b"z"}, "zstd"),
            ],
            {},
            {"a-00001-of-00002.gguf": EYES, "a-00002-of-00002.gguf": WEIGHTS},
        ),
        (
            [layer({"m/config.json": b"{}", "m/model.safetensors": WEIGHTS, "other/x.json": b"{}"}, "zstd")],
            {},
            {"config.json": b"{}", "model.safetensors": WEIGHTS},
        ),
    ],
    ids=["split", "docker-folder", "modelpack", "kitops", "image", "image-folder"],
)
async def test_what_other_programs_push_is_a_model(
    hubs: Hubs,
    registry: RegistryServer,
    store: BlobStore,
    layers: list[Blob],
    titles: dict[int, str],
    expected: dict[str, bytes],
) -> None:
    named = {layers[place].digest: title for place, title in titles.items()}
    registry.pusher.push("you/m", "v1", artifact(layers, titles=named))

    assert await fetched(hubs, f"oci://{registry.name}/you/m:v1", store) == expected


async def test_an_image_without_a_model_says_so(hubs: Hubs, registry: RegistryServer) -> None:
    registry.pusher.push("me/tool", "v1", artifact([layer({"bin/tool": b"x"}), layer({"a.json": b"{}"})]))

    with pytest.raises(Invalid, match="holds no model"):
        await resolved(hubs, f"oci://{registry.name}/me/tool:v1")


async def test_a_file_on_github_also_from_large_file_storage(
    hubs: Hubs, hub: HubServer, store: BlobStore
) -> None:
    sha256 = hashlib.sha256(WEIGHTS).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(WEIGHTS)}\n"
    hub.add("/raw/me/models/main/x.gguf", pointer.encode())
    hub.add("/media/me/models/main/x.gguf", WEIGHTS)
    hub.add("/raw/me/models/dev/sub/y.gguf", EYES)

    assert await fetched(hubs, "github:me/models/x.gguf", store) == {"x.gguf": WEIGHTS}
    assert await fetched(hubs, "github:me/models/sub/y.gguf@dev", store) == {"y.gguf": EYES}
    with pytest.raises(NotFound):
        await resolved(hubs, "github:me/models/z.gguf")


async def test_a_private_registry_is_opened_by_the_credentials_file(
    hubs: Hubs, store: BlobStore, credentials: Path, tmp_path: Path
) -> None:
    (tmp_path / "private").mkdir()
    with registry_server(tmp_path / "private", basic=True) as private:
        private.pusher.push("me/ollama-like", "v1", ollama(("model", WEIGHTS)))
        source = f"oci://{private.name}/me/ollama-like:v1"
        with pytest.raises(Unauthorized, match="wants a user and a password"):
            await resolved(hubs, source)
        write_credentials(credentials, f'["{private.name}"]\nusername = "{USER}"\npassword = "{PASSWORD}"\n')
        assert await fetched(hubs, source, store) == {"ollama-like-v1.gguf": WEIGHTS}
