"""Private registries: passwords, tokens and certificates, from where docker keeps them."""

import base64
import json
import os
import stat
from pathlib import Path

import pytest
import trustme
from aiohttp import web
from pydantic import SecretStr

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.core.errors import Misconfigured, Unauthorized
from remuda.oci.auth import Credentials, Keychain, docker_config_files
from remuda.oci.blobs import BlobStore
from remuda.oci.client import open_client
from remuda.oci.fetch import fetch_image
from remuda.oci.model import Platform
from remuda.oci.reference import parse_reference
from remuda.oci.transport import Registries
from tests.integration.oci.conftest import IMPATIENT
from tests.integration.oci.faulty_server import faulty_server
from tests.support.images import image, noise_layer
from tests.support.registry import PASSWORD, USER, RegistryServer, registry_server

pytestmark = pytest.mark.anyio

AMD64 = Platform("linux", "amd64")
BUILT = image([noise_layer(50_000, 7)])


def docker_config(folder: Path, config: dict[str, object]) -> Keychain:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    env = {"DOCKER_CONFIG": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}
    return Keychain(docker_config_files(env), env)


def auths(registry: str, password: str = PASSWORD) -> dict[str, object]:
    packed = base64.b64encode(f"{USER}:{password}".encode()).decode()
    return {"auths": {registry: {"auth": packed}}}


def helper(folder: Path, script: str) -> None:
    program = folder / "docker-credential-test"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


async def pull(name: str, keys: Keychain, store: BlobStore, registries: Registries | None = None) -> bytes:
    async with open_client(
        SystemClock(), SeededEntropy(1), keys=keys, retry=IMPATIENT, registries=registries
    ) as client:
        found = await client.image(parse_reference(f"{name}/private/image:v1"), AMD64)
        async with fetch_image(client, found, store) as fetched:
            return (await fetched.layer(0)).read_bytes()


async def test_a_password_from_docker_opens_a_registry(tmp_path: Path, store: BlobStore) -> None:
    with registry_server(tmp_path, basic=True) as registry:
        registry.pusher.push("private/image", "v1", BUILT)

        good = docker_config(tmp_path / "good", auths(f"https://{registry.name}/v1/"))
        assert await pull(registry.name, good, store) == BUILT.layers[0].content

        helper_folder = tmp_path / "helper"
        helped = docker_config(helper_folder, {"credHelpers": {registry.name: "test"}})
        helper(
            helper_folder,
            f'read server; [ "$server" = {registry.name} ] && '
            f'echo \'{{"Username":"{USER}","Secret":"{PASSWORD}"}}\'',
        )
        assert await pull(registry.name, helped, BlobStore(tmp_path / "s2")) == BUILT.layers[0].content

        wrong = docker_config(tmp_path / "wrong", auths(registry.name, "hunter2"))
        with pytest.raises(Unauthorized) as refused:
            await pull(registry.name, wrong, BlobStore(tmp_path / "s3"))
        assert "hunter2" not in f"{refused.value!r} {refused.value}"

        with pytest.raises(Unauthorized, match="docker login"):
            await pull(registry.name, docker_config(tmp_path / "none", {}), BlobStore(tmp_path / "s4"))


async def test_a_token_is_fetched_once_and_carried_to_every_request(tmp_path: Path, store: BlobStore) -> None:
    async def guarded(request: web.Request) -> web.StreamResponse | None:
        if request.path == "/token":
            assert request.query["scope"] == "repository:private/image:pull"
            asked_by = request.headers.get("Authorization", "")
            known = asked_by == f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
            return web.json_response({"token": "good-token", "expires_in": 300}, status=200 if known else 401)
        if request.headers.get("Authorization") != "Bearer good-token":
            realm = f"http://127.0.0.1:{server.port}/token"
            return web.Response(
                status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}",service="test"'}
            )
        return None

    async with faulty_server(BUILT, guarded) as server:
        name = f"127.0.0.1:{server.port}"
        assert await pull(name, docker_config(tmp_path, auths(name)), store) == BUILT.layers[0].content
        assert len(server.asked("GET", "/token")) == 1


async def test_a_token_that_ends_in_the_middle_is_replaced_and_the_blob_resumed(store: BlobStore) -> None:
    """Each token is good for two answers, whatever it promises, and blobs break off after a part."""
    tokens = 0
    left: dict[str, int] = {}

    async def guarded(request: web.Request) -> web.StreamResponse | None:
        nonlocal tokens
        if request.path == "/token":
            tokens += 1
            left[f"Bearer t{tokens}"] = 2
            return web.json_response({"token": f"t{tokens}", "expires_in": 300})
        held = request.headers.get("Authorization", "")
        if left.get(held, 0) == 0:
            realm = f"http://127.0.0.1:{server.port}/token"
            return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}"'})
        left[held] -= 1
        if large.digest not in request.path:
            return None
        return await broken_off(request, large.content, after=100_000)

    built = image([noise_layer(650_000, 7)])
    large = built.layers[0]
    async with faulty_server(built, guarded) as server:
        assert await pull(f"127.0.0.1:{server.port}", Keychain((), {}), store) == large.content

        last = server.asked("GET", large.digest)[-1]
        assert (last.http_range.start or 0) >= 500_000
        assert tokens >= 4


async def broken_off(request: web.Request, content: bytes, after: int) -> web.StreamResponse:
    begin = request.http_range.start or 0
    response = web.StreamResponse(
        status=206 if begin else 200,
        headers={
            "Content-Length": str(len(content) - begin),
            "Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}",
        },
    )
    await response.prepare(request)
    await response.write(content[begin : begin + after])
    if begin + after < len(content):
        assert request.transport is not None
        request.transport.close()
    return response


async def test_a_registry_with_its_own_authority_needs_it(
    registry: RegistryServer, registry_folder: Path, tmp_path: Path, store: BlobStore
) -> None:
    authority, files = trustme.CA(), (tmp_path / "cert.pem", tmp_path / "key.pem")
    pair = authority.issue_cert("127.0.0.1")
    pair.cert_chain_pems[0].write_to_path(files[0])
    pair.private_key_pem.write_to_path(files[1])
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    registry.pusher.push("private/image", "v1", BUILT)
    keys = docker_config(tmp_path / "none", {})

    with registry_server(registry_folder, tls=files) as secure:
        mirrors = {"registry.invalid": (f"https://{secure.name}",)}
        trusting = Registries(mirrors=mirrors, ca=tmp_path / "ca.pem")

        assert await pull("registry.invalid", keys, store, trusting) == BUILT.layers[0].content
        with pytest.raises(Misconfigured, match="certificate of 127.0.0.1:.* is not trusted"):  # noqa: RUF043
            await pull("registry.invalid", keys, BlobStore(tmp_path / "s2"), Registries(mirrors=mirrors))


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ('echo \'{"Username":"<token>","Secret":"t"}\'', Credentials("", SecretStr(""), SecretStr("t"))),
        ("echo credentials not found; exit 1", None),
        ("echo nonsense", None),
    ],
)
async def test_what_helpers_say(tmp_path: Path, script: str, found: Credentials | None) -> None:
    keys = docker_config(tmp_path, {"credsStore": "test"})
    helper(tmp_path, f"cat > /dev/null; {script}")

    assert await keys.find("quay.io") == found


async def test_a_helper_that_is_missing_hides_nothing(tmp_path: Path) -> None:
    keys = docker_config(tmp_path, {"credsStore": "absent", **auths("quay.io")})

    assert await keys.find("quay.io") == Credentials(USER, SecretStr(PASSWORD))
    assert await keys.find("ghcr.io") is None


async def test_docker_hub_is_found_under_its_old_name(tmp_path: Path) -> None:
    keys = docker_config(tmp_path, auths("https://index.docker.io/v1/"))

    assert await keys.find("docker.io") == Credentials(USER, SecretStr(PASSWORD))


async def test_a_broken_configuration_is_named_and_not_quoted(tmp_path: Path) -> None:
    keys = docker_config(tmp_path, {})
    (tmp_path / "config.json").write_text('{"auths": {"quay.io": {"auth": "hunter2"')

    with pytest.raises(Misconfigured, match=r"config\.json is not a docker configuration") as refused:
        await keys.find("quay.io")

    assert "hunter2" not in str(refused.value)
