"""Models from a hub that answers as Hugging Face does."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from remuda.core.errors import Forbidden, NotFound, Rejected, Unauthorized
from remuda.hubs.hubs import Hubs
from remuda.hubs.quantisations import NodeRoom
from remuda.oci.blobs import BlobStore
from remuda.oci.errors import ContentRefused, RegistryFailed
from tests.integration.hubs.fetching import BIG_NODE, fetched, resolved, write_credentials
from tests.support.hub import COMMIT, TOKEN, HubRepo, HuggingFaceServer, hugging_face_server
from tests.support.images import noise

pytestmark = pytest.mark.anyio

WEIGHTS = noise(400_000, 1)
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
QUANTISED = {
    "README.md": b"# hello",
    "Tiny-Q2_K.gguf": noise(1_500, 2),
    "Tiny-Q4_K_M.gguf": WEIGHTS,
    "Tiny-Q8_0.gguf": noise(900_000, 3),
    "mmproj-F16.gguf": noise(2_000, 4),
    "BF16/Tiny-BF16-00001-of-00002.gguf": noise(3_000, 5),
    "BF16/Tiny-BF16-00002-of-00002.gguf": noise(4_000, 6),
}


@pytest.fixture
async def face(env: dict[str, str]) -> AsyncIterator[HuggingFaceServer]:
    async with hugging_face_server() as server:
        server.repos["org/tiny-GGUF"] = HubRepo(QUANTISED)
        env["HF_ENDPOINT"] = server.hub.url
        yield server


async def test_the_variant_that_fits_is_pinned_to_its_commit_and_fetched(
    face: HuggingFaceServer, hubs: Hubs, store: BlobStore
) -> None:
    face.page_size = 2
    face.storage.break_after = 150_000

    found = await resolved(hubs, "hf://org/tiny-GGUF", BIG_NODE)

    assert found.revision == COMMIT
    assert found.choice == "Q4_K_M (392.6 KiB), which fits big (64.0 GiB)"
    assert all(f"/resolve/{COMMIT}/" in url for file in found.files for url in file.urls)
    assert await fetched(hubs, "hf://org/tiny-GGUF", store, BIG_NODE) == {
        "Tiny-Q4_K_M.gguf": WEIGHTS,
        "mmproj-F16.gguf": QUANTISED["mmproj-F16.gguf"],
    }
    assert face.storage.bytes_sent == len(WEIGHTS) + len(QUANTISED["mmproj-F16.gguf"])


async def test_one_file_a_folder_and_a_quantisation_can_be_asked_for(
    face: HuggingFaceServer, hubs: Hubs, store: BlobStore
) -> None:
    one = await resolved(hubs, "hf://org/tiny-GGUF/Tiny-Q8_0.gguf@main")
    assert [(file.path, file.size) for file in one.files] == [("Tiny-Q8_0.gguf", 900_000)]
    assert one.files[0].sha256 == hashlib.sha256(QUANTISED["Tiny-Q8_0.gguf"]).hexdigest()
    parts = ["Tiny-BF16-00001-of-00002.gguf", "Tiny-BF16-00002-of-00002.gguf"]
    for source in ("hf://org/tiny-GGUF/BF16", "hf://org/tiny-GGUF/BF16/Tiny-BF16-00002-of-00002.gguf"):
        found = await resolved(hubs, source)
        assert [file.path.rpartition("/")[2] for file in found.files] == parts
    chosen = await resolved(hubs, "hf://org/tiny-GGUF:bf16")
    assert [file.path for file in chosen.files] == [*(f"BF16/{part}" for part in parts), "mmproj-F16.gguf"]
    small = await fetched(hubs, "hf://org/tiny-GGUF/README.md", store)  # Its tag is no sha256.
    assert small == {"README.md": b"# hello"}


async def test_a_folder_of_safetensors_comes_whole(
    face: HuggingFaceServer, hubs: Hubs, store: BlobStore
) -> None:
    files = {
        "config.json": b"{}",
        "tokenizer.json": b"{ }",
        "model-00001-of-00002.safetensors": noise(2_000, 7),
        "model-00002-of-00002.safetensors": noise(2_001, 8),
    }
    face.repos["org/full"] = HubRepo({**files, "pytorch_model.bin": b"x", ".gitattributes": b"x"})
    assert await fetched(hubs, "https://huggingface.co/org/full", store) == files


async def test_the_token_goes_to_the_hub_and_never_to_its_storage(
    face: HuggingFaceServer, hubs: Hubs, store: BlobStore, env: dict[str, str]
) -> None:
    face.repos["org/private"] = HubRepo({"x.gguf": WEIGHTS}, private=True)
    with pytest.raises(NotFound, match=r":\d+ has no repository org/private, or it is private.*HF_TOKEN"):
        await resolved(hubs, "hf://org/private")
    env["HF_TOKEN"] = TOKEN

    assert await fetched(hubs, "hf://org/private", store) == {"x.gguf": WEIGHTS}
    assert face.storage.requests
    assert all("Authorization" not in request.headers for request in face.storage.requests)


@pytest.mark.parametrize("place", ["file of the hub's own client", "credentials file"])
async def test_a_token_is_found_where_people_keep_it(
    face: HuggingFaceServer, hubs: Hubs, env: dict[str, str], tmp_path: Path, credentials: Path, place: str
) -> None:
    face.repos["org/private"] = HubRepo({"x.gguf": WEIGHTS}, private=True)
    if place == "credentials file":
        write_credentials(credentials, f'["{face.hub.url}"]\ntoken = "{TOKEN}"\n')
        env["HF_TOKEN"] = "hf_another"  # The file is the nearer one.
    else:
        env["HF_HOME"] = str(tmp_path)
        write_credentials(tmp_path / "token", f"{TOKEN}\n")
    assert (await resolved(hubs, "hf://org/private")).files[0].size == len(WEIGHTS)


async def test_refusals_are_told_apart_with_what_to_do(
    face: HuggingFaceServer, hubs: Hubs, env: dict[str, str]
) -> None:
    face.repos["org/gated"] = HubRepo({"x.gguf": WEIGHTS}, gated=True)
    told: list[tuple[str, type[Rejected], str]] = [
        (
            "hf://org/gated",
            Unauthorized,
            r"is gated: its owner requires.*accept them at .*/org/gated, then set HF_T",
        ),
        ("hf://org/nothing", NotFound, r"no repository org/nothing, or it is private"),
        ("hf://org/tiny-GGUF@v9", NotFound, r"has no revision 'v9' \(it has main\)"),
        ("hf://org/tiny-GGUF@mian", NotFound, r"has no revision 'mian' \(it has main\)"),
        ("hf://org/tiny-GGUF@Mainn", NotFound, r"has no revision 'Mainn' \(did you mean main\?\)"),
        ("hf://org/tiny-GGUF/zebra.bin", NotFound, r"no file 'zebra.bin' \(it has .*Tiny-Q4_K_M\.gguf, "),
        ("hf://org/tiny-GGUF/zebra.bin", NotFound, r"its quantisations: .*Q4_K_M"),
        ("hf://org/tiny-GGUF/Tiny-Q4_K.gguf", NotFound, r"no file 'Tiny-Q4_K.gguf'.*mean Tiny-Q4_K_M\.gguf"),
        ("hf://org/tiny-GGUF:Q5_1", NotFound, r"no quantisation Q5_1.*Q2_K \(3\.4 KiB\)"),
    ]
    with_token: list[tuple[str, type[Rejected], str]] = [
        ("hf://org/gated", Forbidden, r"the account of the token.*ask for access at .*/org/gated"),
        ("hf://org/nothing", NotFound, r"or the token that is used may not see it"),
    ]
    for source, kind, words in told:
        with pytest.raises(kind, match=words):
            await resolved(hubs, source, BIG_NODE)
    env["HF_TOKEN"] = TOKEN
    for source, kind, words in with_token:
        with pytest.raises(kind, match=words):
            await resolved(hubs, source)
    env["HF_TOKEN"] = "hf_stale"
    with pytest.raises(Unauthorized, match=rf":\d+ refuses the token that is used.*\[\"{face.hub.url}\"\]"):
        await resolved(hubs, "hf://org/tiny-GGUF")


async def test_a_renamed_repository_is_followed_and_named(
    face: HuggingFaceServer, hubs: Hubs, store: BlobStore
) -> None:
    face.renamed["old/tiny"] = "org/tiny-GGUF"
    for source in ("hf://old/tiny", "hf://old/tiny/Tiny-Q4_K_M.gguf"):
        found = await resolved(hubs, source, BIG_NODE)
        assert found.notes[0].startswith("old/tiny is now called org/tiny-GGUF; name it so")
        assert "org/tiny-GGUF" in str(found.source)
        assert "org/tiny-GGUF" in found.files[0].urls[0]


async def test_a_hub_that_is_asked_too_often_is_waited_for(
    face: HuggingFaceServer, hubs: Hubs, store: BlobStore
) -> None:
    face.busy = ['"api";r=0;t=0']
    assert await resolved(hubs, "hf://org/tiny-GGUF/Tiny-Q4_K_M.gguf")
    face.busy = ['"api";r=0;t=55']
    with pytest.raises(RegistryFailed, match=r"asked too often, and asks to wait 55 s.*HF_TOKEN") as busy:
        await resolved(hubs, "hf://org/tiny-GGUF/Tiny-Q4_K_M.gguf")
    assert busy.value.problem().wait_s == 55, "for which the operation waits"


def fill_cache(home: Path, content: bytes) -> None:
    """As the hub's own client lays it out."""
    folder = home / "hub" / "models--org--tiny-GGUF"
    for part in ("blobs", "refs", f"snapshots/{COMMIT}"):
        (folder / part).mkdir(parents=True)
    (folder / "blobs" / SHA256).write_bytes(content)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT / "Tiny-Q4_K_M.gguf").symlink_to(f"../../blobs/{SHA256}")


@pytest.mark.parametrize("damaged", [False, True])
async def test_what_another_program_has_fetched_is_checked_and_not_fetched_again(
    face: HuggingFaceServer, hubs: Hubs, store: BlobStore, env: dict[str, str], tmp_path: Path, damaged: bool
) -> None:
    env["HF_HOME"] = str(tmp_path)
    fill_cache(tmp_path, bytes(len(WEIGHTS)) if damaged else WEIGHTS)
    source = "hf://org/tiny-GGUF/Tiny-Q4_K_M.gguf"

    assert await fetched(hubs, source, store) == {"Tiny-Q4_K_M.gguf": WEIGHTS}
    assert face.storage.bytes_sent == (len(WEIGHTS) if damaged else 0)


async def test_offline_only_the_cache_is_used(
    face: HuggingFaceServer, hubs: Hubs, store: BlobStore, env: dict[str, str], tmp_path: Path
) -> None:
    env |= {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    with pytest.raises(NotFound, match="HF_HUB_OFFLINE is set, and the cache"):
        await resolved(hubs, "hf://org/tiny-GGUF")
    fill_cache(tmp_path, WEIGHTS)

    assert await fetched(hubs, "hf://org/tiny-GGUF", store) == {"Tiny-Q4_K_M.gguf": WEIGHTS}
    assert (await resolved(hubs, "hf://org/tiny-GGUF")).revision == COMMIT
    assert not face.hub.requests


async def test_a_small_node_gets_a_smaller_variant(face: HuggingFaceServer, hubs: Hubs) -> None:
    found = await resolved(hubs, "hf://org/tiny-GGUF", NodeRoom("tiny", (256 << 20) + 100_000))
    assert [file.path for file in found.files] == [
        "BF16/Tiny-BF16-00001-of-00002.gguf",
        "BF16/Tiny-BF16-00002-of-00002.gguf",
        "mmproj-F16.gguf",
    ]


async def test_web_page_in_place_of_the_hubs_answer_is_called_one(
    hubs: Hubs, env: dict[str, str], tmp_path: Path
) -> None:
    async def portal(request: web.Request) -> web.Response:
        return web.Response(text="<html>Sign in</html>", content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", portal)
    async with TestServer(app) as server:
        env["HF_ENDPOINT"] = str(server.make_url("/")).rstrip("/")
        for source in ("hf://org/tiny-GGUF", "hf://org/tiny-GGUF/Tiny-Q4_K_M.gguf"):
            with pytest.raises(ContentRefused, match=r"a web page came instead of .*sign-in page"):
                await resolved(hubs, source, BIG_NODE)
