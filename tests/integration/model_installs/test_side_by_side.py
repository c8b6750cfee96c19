"""The files of one model come side by side."""

import hashlib
from collections.abc import Awaitable, Callable

import anyio
import pytest
from aiohttp import web

from remuda.model_installs.fetching import FILES_AT_ONCE_MAX
from remuda.ops.model import State
from tests.integration.model_installs.conftest import Make
from tests.integration.model_installs.test_installing import padded
from tests.support.hub import HubRepo, hugging_face_server
from tests.support.images import noise
from tests.support.model_rig import impatient_hubs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SHARDS = 6
WAITED_S = 20.0


def folder(first: bytes = b"") -> dict[str, bytes]:
    head = b"\x02" + bytes(7) + b"{}"
    shards = {
        f"model-{number:05}-of-{SHARDS:05}.safetensors": head + noise(200_000, number)
        for number in range(1, SHARDS + 1)
    }
    if first:
        shards[next(iter(shards))] = first
    return {"config.json": b'{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}', **shards}


class Gate:
    """Holds every large file until so many are asked for at once."""

    def __init__(self, together: int) -> None:
        self.together = together
        self.waiting = self.most = 0
        self._open = anyio.Event()

    async def __call__(self, request: web.Request) -> None:
        if request.method != "GET" or "/cdn/" not in request.path:
            return
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        if self.waiting >= self.together:
            self._open.set()
        with anyio.move_on_after(WAITED_S):
            await self._open.wait()
        self.waiting -= 1


async def test_files_of_a_model_are_fetched_side_by_side_and_no_more_than_the_limit(make: Make) -> None:
    async with hugging_face_server() as face, impatient_hubs({"HF_ENDPOINT": face.hub.url}) as hubs:
        face.repos["org/sharded"] = HubRepo(folder())
        gate = Gate(FILES_AT_ONCE_MAX)
        face.storage.before = gate
        async with make(hubs=hubs) as frontend:
            model = await frontend.installed(await frontend.install("hf://org/sharded"))

    assert gate.most == FILES_AT_ONCE_MAX
    assert model.manifest is not None
    names = [file.path for file in model.manifest.files]
    assert len(names) == SHARDS + 1
    assert sorted(names) == names, "in the order of the repository, whichever came first"


async def test_a_file_that_fails_ends_the_others_and_what_came_is_kept(make: Make) -> None:
    content = folder()
    bad, *good = [name for name in content if name.endswith(".safetensors")]
    async with hugging_face_server() as face, impatient_hubs({"HF_ENDPOINT": face.hub.url}) as hubs:
        face.repos["org/sharded"] = HubRepo(content)
        refused = _refusing(hashlib.sha256(content[bad]).hexdigest(), lambda: len(face.storage.requests) >= 3)
        face.storage.before = refused
        async with make(hubs=hubs) as frontend:
            op = await frontend.install("hf://org/sharded")
            step = await frontend.ended(op)
            assert step.state is State.FAILED
            assert frontend.visible() == []

            face.storage.before = None
            sent_before = face.storage.bytes_sent
            await frontend.installed(await frontend.install("hf://org/sharded"))
            assert len(frontend.visible()) == SHARDS + 1
    assert face.storage.bytes_sent - sent_before < sum(map(len, content.values()))
    assert good


def _refusing(
    sha256: str, once: Callable[[], bool]
) -> Callable[[web.Request], Awaitable[web.Response | None]]:
    async def before(request: web.Request) -> web.Response | None:
        if sha256 not in request.path:
            return None
        await wait_until(once, within=WAITED_S)
        return web.Response(status=403)

    return before


async def test_how_far_it_is_counts_the_bytes_of_all_files(make: Make) -> None:
    content = folder()
    whole = sum(map(len, content.values()))
    async with hugging_face_server() as face, impatient_hubs({"HF_ENDPOINT": face.hub.url}) as hubs:
        face.repos["org/sharded"] = HubRepo(content)
        face.storage.bytes_per_s = 400_000
        async with make(hubs=hubs) as frontend:
            op = await frontend.install("hf://org/sharded")

            async def midway() -> bool:
                step = await frontend.step(op)
                live = frontend.ops.board.of(op, step.node)
                if live is None or live.phase != "downloading" or not live.file_bytes:
                    return False
                assert (live.total_bytes, live.file_count) == (whole, SHARDS + 1)
                return live.file_bytes < live.current_bytes < whole

            await wait_until(midway, what="several files to be on their way")
            await frontend.installed(op)


async def test_one_file_alone_is_as_before(make: Make) -> None:
    async with hugging_face_server() as face, impatient_hubs({"HF_ENDPOINT": face.hub.url}) as hubs:
        face.repos["org/one"] = HubRepo({"one-Q8_0.gguf": padded(100_000)})
        async with make(hubs=hubs) as frontend:
            await frontend.installed(await frontend.install("hf://org/one"))
            assert frontend.visible() == ["one/one-Q8_0.gguf"]
