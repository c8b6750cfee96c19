"""One index from one address: what is fetched, and what is refused in which words."""

import os
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from remuda.core.errors import Invalid, PeerFailed, RemudaError, TooLarge
from remuda.gallery.fetch import (
    CachedCopy,
    Fetched,
    Fetcher,
    Unchanged,
    Validators,
    located,
    open_fetcher,
    redirected,
    shown,
)
from remuda.gallery.index import LIMITS
from tests.integration.gallery.servers import Server

pytestmark = pytest.mark.anyio


async def content(fetcher: Fetcher, address: str) -> bytes:
    answer = await fetcher.fetch(address)
    assert isinstance(answer, Fetched)
    return answer.content


# Addresses


async def test_http_is_fetched_with_its_validators(fetcher: Fetcher, server: Server) -> None:
    server.serve(b"- a", etag='"1"', modified="Sun, 01 Mar 2026 00:00:00 GMT")

    answer = await fetcher.fetch(server.url())

    validators = Validators('"1"', "Sun, 01 Mar 2026 00:00:00 GMT")
    assert answer == Fetched(server.url(), b"- a", validators)


async def test_a_branch_on_github_is_a_raw_file(fetcher: Fetcher, server: Server) -> None:
    server.serve(b"- a", "/owner/repository/master/backend/index.yaml")
    server.serve(b"- b", "/owner/repository/main/index.yaml")

    assert await content(fetcher, "github:owner/repository/backend/index.yaml@master") == b"- a"
    assert await content(fetcher, "github://owner/repository/index.yaml") == b"- b"


def test_github_is_github_unless_told_otherwise() -> None:
    assert located("github:mudler/LocalAI/backend/index.yaml@master") == (
        "https://raw.githubusercontent.com/mudler/LocalAI/master/backend/index.yaml"
    )


async def test_a_reference_names_a_file_beside_itself(fetcher: Fetcher, server: Server) -> None:
    server.serve(b"v2/index.yaml\n", "/backends/current.ref")
    server.serve(b"- a", "/backends/v2/index.yaml")

    assert await content(fetcher, server.url("/backends/current.ref")) == b"- a"


async def test_a_file_is_read(fetcher: Fetcher, tmp_path: Path) -> None:
    (tmp_path / "my index.yaml").write_bytes(b"- a")

    assert await content(fetcher, f"file://{tmp_path}/my%20index.yaml") == b"- a"
    assert await content(fetcher, f"file:{tmp_path}/my index.yaml") == b"- a"


async def test_an_unchanged_index_is_not_sent_again(fetcher: Fetcher, server: Server) -> None:
    server.serve(b"- a", etag='"1"')

    answer = await fetcher.fetch(server.url(), CachedCopy(server.url(), Validators('"1"')))

    assert answer == Unchanged(server.url())


async def test_validators_of_one_address_are_not_used_on_another(fetcher: Fetcher, server: Server) -> None:
    server.serve(b"- a", etag='"1"')

    answer = await fetcher.fetch(server.url(), CachedCopy("https://elsewhere.example/", Validators('"1"')))

    assert isinstance(answer, Fetched)


async def test_redirects_are_followed(fetcher: Fetcher, server: Server) -> None:
    server.redirect("/moved.yaml")
    server.serve(b"- a", "/moved.yaml")

    assert await content(fetcher, server.url()) == b"- a"


# Refusals


async def refusal(fetcher: Fetcher, address: str, kind: type[RemudaError] = PeerFailed) -> str:
    with pytest.raises(kind) as caught:
        await fetcher.fetch(address)
    return str(caught.value)


@pytest.mark.parametrize("status", [304, 400, 404, 500, 503])
async def test_a_bad_status_is_named(fetcher: Fetcher, server: Server, status: int) -> None:
    server.fail(status)

    assert f"index.yaml answered {status}" in await refusal(fetcher, server.url())


async def test_redirects_in_a_circle_end(fetcher: Fetcher, server: Server) -> None:
    server.redirect("/index.yaml")

    assert "redirects more than 5 times" in await refusal(fetcher, server.url())
    assert len(server.asked) == 6


@pytest.mark.parametrize("location", ["", "file:///etc/passwd", "ftp://x/", "http://[::1"])
async def test_redirects_stay_on_the_web(fetcher: Fetcher, server: Server, location: str) -> None:
    server.redirect(location)

    assert "redirects to no web address" in await refusal(fetcher, server.url())


async def test_redirects_do_not_lead_to_addresses_of_the_link(fetcher: Fetcher, server: Server) -> None:
    server.redirect("http://169.254.169.254/latest/meta-data")

    assert "169.254.169.254, a link-local address" in await refusal(fetcher, server.url())


def test_a_redirect_may_add_encryption_but_not_drop_it() -> None:
    assert redirected("http://a.example/x", "https://b.example/y") == "https://b.example/y"
    with pytest.raises(PeerFailed, match="not encrypted"):
        redirected("https://a.example/x", "http://a.example/x")


async def test_a_huge_answer_is_cut_off(fetcher: Fetcher, server: Server) -> None:
    sent = 0

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"#" * (1 << 20))
            sent += 1 << 20

    server.routes["/index.yaml"] = endless

    assert "more than the 8388608 bytes" in await refusal(fetcher, server.url(), TooLarge)
    assert sent < 2 * LIMITS.bytes


async def test_a_server_that_falls_silent_is_given_up(hasty_fetcher: Fetcher, server: Server) -> None:
    async def stall(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"- a")
        await anyio.sleep_forever()
        return response

    server.routes["/index.yaml"] = stall

    assert "sent nothing for" in await refusal(hasty_fetcher, server.url())


async def test_a_server_that_trickles_is_given_up(hasty_fetcher: Fetcher, server: Server) -> None:
    async def trickle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with anyio.move_on_after(30):
            while True:
                await response.write(b"#")
                with anyio.move_on_after(0.05):
                    await anyio.sleep_forever()
        return response

    server.routes["/index.yaml"] = trickle

    assert "took longer than 0.9 s" in await refusal(hasty_fetcher, server.url())


async def test_compression_that_nobody_asked_for_is_refused(fetcher: Fetcher, server: Server) -> None:
    async def compressed(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})

    server.routes["/index.yaml"] = compressed

    assert "compressed" in await refusal(fetcher, server.url())


async def test_a_closed_port_is_said_plainly(fetcher: Fetcher, free_address: str) -> None:
    assert await refusal(fetcher, f"{free_address}/index.yaml") == (
        f"{free_address}/index.yaml cannot be reached: Connection refused"
    )


@pytest.mark.parametrize(
    "name", [b"", b"../secret.yaml", b"/secret.yaml", b"https://evil.example/", b"a\nb", b"x.ref"]
)
async def test_a_reference_stays_in_its_folder(fetcher: Fetcher, server: Server, name: bytes) -> None:
    server.serve(name, "/current.ref")

    assert "current.ref" in await refusal(fetcher, server.url("/current.ref"))
    assert len(server.asked) == 1


async def test_a_reference_is_short(fetcher: Fetcher, server: Server) -> None:
    server.serve(b"x" * 2000, "/current.ref")

    assert "1024 bytes" in await refusal(fetcher, server.url("/current.ref"), TooLarge)


@pytest.mark.parametrize(
    "address", ["ftp://x/y", "index.yaml", "builtin:x", "github:owner/repository", "github:a/../b@m"]
)
async def test_other_addresses_are_refused_with_those_that_work(fetcher: Fetcher, address: str) -> None:
    assert "github:" in await refusal(fetcher, address, Invalid)


@pytest.mark.parametrize(
    "address",
    [
        "http://[::1",
        "http://[x]/",
        "http://h:99999/",
        "http://h:abc/",
        "https:",
        "http://../",
        "file:///a%00b",
        "file:",
    ],
)
async def test_an_address_that_makes_no_sense_is_refused(fetcher: Fetcher, address: str) -> None:
    assert "no" in await refusal(fetcher, address, Invalid)


async def test_files_outside_the_given_folders_are_refused(tmp_path: Path) -> None:
    inside = tmp_path / "backends"
    inside.mkdir()
    (tmp_path / "secret.yaml").write_bytes(b"- secret")
    (inside / "index.yaml").write_bytes(b"- a")
    (inside / "link.yaml").symlink_to(tmp_path / "secret.yaml")

    async with open_fetcher(file_roots=(inside,)) as fetcher:
        assert await content(fetcher, f"file://{inside}/index.yaml") == b"- a"
        for path in ("link.yaml", "../secret.yaml"):
            assert "lies outside" in await refusal(fetcher, f"file://{inside}/{path}", Invalid)


async def test_what_is_no_file_is_refused(fetcher: Fetcher, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    assert "is not a file" in await refusal(fetcher, f"file://{tmp_path}/pipe", Invalid)
    assert "is not a file" in await refusal(fetcher, "file:///dev/zero", Invalid)
    assert "cannot be read: Is a directory" in await refusal(fetcher, f"file://{tmp_path}")
    assert "cannot be read: No such file" in await refusal(fetcher, f"file://{tmp_path}/none")
    assert "names no file" in await refusal(fetcher, "file:index.yaml", Invalid)
    assert "names no file" in await refusal(fetcher, "file://host/index.yaml", Invalid)


def test_addresses_are_shown_without_secrets() -> None:
    assert shown("https://user:secret@example.org:8443/a?token=secret#x") == "https://example.org:8443/a"
