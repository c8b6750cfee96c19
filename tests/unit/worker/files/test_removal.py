"""Files of requests are removed when the request is over; no other file is."""

import hashlib
from pathlib import Path

import pytest

from remuda.worker.files import limits
from tests.peers.localai_file_client import Reply
from tests.support.file_server import FileServer

pytestmark = pytest.mark.anyio

KEY = "ephemeral/inputs/0a1b2c3d/speech.wav"


async def delete(server: FileServer, key: str) -> Reply:
    return await server.do(server.client.ask, "DELETE", f"/v1/files/{key}")


async def test_an_input_is_removed_with_its_hash_and_its_folder(server: FileServer) -> None:
    content = b"speech"
    sha256 = hashlib.sha256(content).hexdigest()
    await server.do(server.client.put_range, KEY, content, 0, len(content), sha256)

    removed = await delete(server, KEY)

    assert (removed.status, removed.body) == (204, b"")
    assert (await server.do(server.client.head, KEY)).status == 404
    assert list((server.staging / "ephemeral/inputs").iterdir()) == []
    assert (await delete(server, KEY)).status == 404


async def test_an_input_that_has_not_arrived_whole_is_removed(server: FileServer) -> None:
    await server.do(server.client.put_range, KEY, b"spe", 0, 6, hashlib.sha256(b"speech").hexdigest())

    assert (await delete(server, KEY)).status == 204
    assert server.left_over() == []


async def test_what_is_beside_an_input_stays(server: FileServer) -> None:
    await server.do(server.client.put, KEY, b"x")
    await server.do(server.client.put, "ephemeral/inputs/0a1b2c3d/other.wav", b"y")

    await delete(server, KEY)

    assert [path.name for path in (server.staging / "ephemeral/inputs/0a1b2c3d").glob("*.wav")] == [
        "other.wav"
    ]


async def test_an_output_is_removed(server: FileServer) -> None:
    output = str(await server.do(server.client.temp)).rpartition("/")[2]

    assert (await delete(server, output)).status == 204
    assert list(server.staging.iterdir()) == []


async def test_removing_gives_room_for_other_inputs(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EPHEMERAL_BYTES_MAX", 10)
    for number in range(3):
        assert (await server.do(server.client.put, f"ephemeral/inputs/{number}/a", b"123456")).status == 200
        assert (await delete(server, f"ephemeral/inputs/{number}/a")).status == 204


@pytest.mark.parametrize("key", ["models/m/f.bin", "data/f.bin", "other.tmp", "localai-output-1.wav"])
async def test_no_other_file_is_removed(server: FileServer, key: str) -> None:
    await server.do(server.client.put, key, b"x")

    assert (await delete(server, key)).status == 405
    assert (await server.do(server.client.get, key)).status == 200


async def test_nothing_outside_is_removed(server: FileServer, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x")
    inputs = server.staging / "ephemeral/inputs"
    (inputs / "mine").mkdir(parents=True)
    (inputs / "out").symlink_to(tmp_path)
    (inputs / "mine/link").symlink_to(secret)

    statuses = [
        (await delete(server, key)).status
        for key in (
            "ephemeral/inputs/out/secret",
            "ephemeral/inputs/mine/link",
            "ephemeral/inputs/%2e%2e/%2e%2e/%2e%2e/secret",
            "ephemeral/inputs/../../../models",
            "ephemeral/inputs/mine",
        )
    ]

    assert statuses == [400, 400, 400, 400, 400]
    assert secret.exists()


async def test_nothing_is_removed_without_the_token(server: FileServer) -> None:
    await server.do(server.client.put, KEY, b"x")
    server.client.token = ""

    assert (await delete(server, KEY)).status == 401
