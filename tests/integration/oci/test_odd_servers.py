"""Servers that are busy, redirect, ignore what they are asked, or lie."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import anyio
import pytest
from aiohttp import web
from pydantic import SecretStr

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.oci import limits
from remuda.oci.auth import Credentials
from remuda.oci.blobs import BlobStore
from remuda.oci.client import RegistryClient, open_client
from remuda.oci.errors import ContentRefused, RegistryFailed
from remuda.oci.fetch import fetch_image
from remuda.oci.model import Platform
from remuda.oci.reference import parse_reference
from remuda.oci.transport import Registries, RetryPolicy
from tests.integration.oci.conftest import IMPATIENT
from tests.integration.oci.faulty_server import FaultyServer, faulty_server
from tests.support.images import image, noise_layer

pytestmark = pytest.mark.anyio

AMD64 = Platform("linux", "amd64")
BUILT = image([noise_layer(300_000, 5)])
LAYER = BUILT.layers[0]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


class OneKey:
    async def find(self, registry: str) -> Credentials | None:
        return Credentials("rider", SecretStr("saddle-4711"))


def only_for(part: str, times: int, answer: Callable[[], web.Response]) -> Handler:
    """Answers the first so many requests whose path has that part."""
    left = times

    async def before(request: web.Request) -> web.StreamResponse | None:
        nonlocal left
        if part not in request.path or left == 0:
            return None
        left -= 1
        return answer()

    return before


async def pull(client: RegistryClient, server: FaultyServer, store: BlobStore) -> list[bytes]:
    found = await client.image(parse_reference(server.reference), AMD64)
    async with fetch_image(client, found, store) as fetched:
        return [path.read_bytes() for path in await fetched.layers()]


@pytest.mark.parametrize("part", ["/manifests/", "/blobs/"])
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_registry_is_asked_again(
    client: RegistryClient, store: BlobStore, part: str, status: int
) -> None:
    busy = only_for(part, 2, lambda: web.Response(status=status, headers={"Retry-After": "0"}))
    async with faulty_server(BUILT, busy) as server:
        assert await pull(client, server, store) == [LAYER.content]


async def test_the_wait_a_registry_asks_for_is_kept(store: BlobStore) -> None:
    busy = only_for("/manifests/", 1, lambda: web.Response(status=429, headers={"Retry-After": "1"}))
    clock = SystemClock()
    async with (
        faulty_server(BUILT, busy) as server,
        open_client(clock, SeededEntropy(1), retry=IMPATIENT) as client,
    ):
        began = clock.monotonic()
        await client.digest_of(parse_reference(server.reference))
        assert clock.monotonic() - began >= 1


async def test_a_wait_of_hours_is_reported_instead(client: RegistryClient) -> None:
    body = '{"errors":[{"code":"TOOMANYREQUESTS","message":"pull limit reached"}]}'
    busy = only_for("/", 99, lambda: web.Response(status=429, text=body, headers={"Retry-After": "7200"}))
    async with faulty_server(BUILT, busy) as server:
        with pytest.raises(RegistryFailed, match="pull limit reached, and asks to wait 7200 s"):
            await client.image(parse_reference(server.reference), AMD64)

        assert len(server.requests) == 1


async def test_a_registry_that_stays_broken_is_asked_a_bounded_number_of_times(
    client: RegistryClient,
) -> None:
    async with faulty_server(BUILT, only_for("/", 99, lambda: web.Response(status=502))) as server:
        with pytest.raises(RegistryFailed, match="status 502"):
            await client.image(parse_reference(server.reference), AMD64)

        assert len(server.requests) == IMPATIENT.attempts_max


async def test_layers_come_side_by_side_within_a_bound(client: RegistryClient, store: BlobStore) -> None:
    built = image([noise_layer(1000, number) for number in range(2 * limits.LAYERS_AT_ONCE_MAX)])
    layers = {part.digest for part in built.layers}
    together, most, full = 0, 0, anyio.Event()

    async def held(request: web.Request) -> web.StreamResponse | None:
        nonlocal together, most
        if request.path.rpartition("/")[2] not in layers:
            return None
        together += 1
        most = max(most, together)
        if together == limits.LAYERS_AT_ONCE_MAX:
            full.set()
        with anyio.fail_after(10):
            await full.wait()
        together -= 1
        return None

    async with faulty_server(built, held) as server:
        assert await pull(client, server, store) == [part.content for part in built.layers]

    assert most == limits.LAYERS_AT_ONCE_MAX


async def test_a_server_that_ignores_ranges_still_gives_the_whole(
    client: RegistryClient, store: BlobStore
) -> None:
    partial = store.root / "partial" / LAYER.digest.replace(":", "-")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(LAYER.content[:100_000])
    async with faulty_server(BUILT) as server:
        server.honours_ranges = False

        assert await pull(client, server, store) == [LAYER.content]
        assert server.asked("GET", LAYER.digest)[0].headers["Range"] == "bytes=100000-"


async def test_an_endless_blob_is_cut_off(client: RegistryClient, store: BlobStore) -> None:
    async def endless(request: web.Request) -> web.StreamResponse | None:
        if LAYER.digest not in request.path:
            return None
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 100_000)

    async with faulty_server(BUILT, endless) as server:
        with pytest.raises(ContentRefused, match="at least"):
            await pull(client, server, store)


async def test_a_manifest_other_than_pinned_is_refused(client: RegistryClient) -> None:
    async with faulty_server(BUILT) as server:
        wrong = f"127.0.0.1:{server.port}/some/image@sha256:{'0' * 64}"
        with pytest.raises(ContentRefused, match="should have digest sha256:0000"):
            await client.image(parse_reference(wrong), AMD64)


async def test_an_oversized_manifest_is_refused(client: RegistryClient) -> None:
    async with faulty_server(BUILT, only_for("/", 9, lambda: web.Response(body=b" " * (5 << 20)))) as server:
        with pytest.raises(ContentRefused, match="larger than"):
            await client.image(parse_reference(server.reference), AMD64)


async def test_a_redirect_to_other_storage_does_not_get_the_password(store: BlobStore) -> None:
    async with faulty_server(BUILT) as storage:

        async def guarded(request: web.Request) -> web.StreamResponse | None:
            if "Authorization" not in request.headers:
                return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})
            if LAYER.digest in request.path:
                return web.Response(
                    status=307,
                    headers={"Location": f"http://127.0.0.1:{storage.port}{request.path}?X-Sig=a%2Fb"},
                )
            return None

        async with (
            faulty_server(BUILT, guarded) as server,
            open_client(SystemClock(), SeededEntropy(1), keys=OneKey(), retry=IMPATIENT) as client,
        ):
            assert await pull(client, server, store) == [LAYER.content]

        assert len(storage.requests) == 1
        assert "Authorization" not in storage.requests[0].headers
        assert storage.requests[0].rel_url.raw_query_string == "X-Sig=a%2Fb"


async def test_storage_behind_a_redirect_cannot_ask_who_we_are(store: BlobStore) -> None:
    ask = only_for("/", 99, lambda: web.Response(status=401, headers={"WWW-Authenticate": "Basic"}))
    async with faulty_server(BUILT, ask) as storage:

        async def away(request: web.Request) -> web.StreamResponse | None:
            location = f"http://127.0.0.1:{storage.port}{request.path}"
            return web.Response(status=302, headers={"Location": location})

        async with (
            faulty_server(BUILT, away) as server,
            open_client(SystemClock(), SeededEntropy(1), keys=OneKey(), retry=IMPATIENT) as client,
        ):
            with pytest.raises(Exception, match=r"refuses .* with status 40[13]"):
                await pull(client, server, store)

        assert all("Authorization" not in request.headers for request in storage.requests)


async def test_redirects_in_a_circle_end(client: RegistryClient) -> None:
    circle = only_for("/", 999, lambda: web.Response(status=302, headers={"Location": "/v2/again"}))
    async with faulty_server(BUILT, circle) as server:
        with pytest.raises(RegistryFailed, match="redirects more than"):
            await client.digest_of(parse_reference(server.reference))


async def test_mirrors_are_asked_in_order_and_the_registry_last(store: BlobStore) -> None:
    async with (
        faulty_server(BUILT, only_for("/", 99, lambda: web.Response(status=404))) as empty,
        faulty_server(BUILT) as full,
    ):
        mirrors = ("127.0.0.1:1", f"127.0.0.1:{empty.port}", f"http://127.0.0.1:{full.port}")
        registries = Registries(mirrors={"registry.invalid": mirrors})
        async with open_client(
            SystemClock(), SeededEntropy(1), registries=registries, retry=RetryPolicy(attempts_max=1)
        ) as client:
            found = await client.image(parse_reference("registry.invalid/some/image:v1"), AMD64)
            async with fetch_image(client, found, store) as fetched:
                await fetched.layers()

        assert empty.requests
        assert full.asked("GET", LAYER.digest)


def test_patience_has_a_bound() -> None:
    assert RetryPolicy().retry_after_max <= timedelta(minutes=10)
