"""What is said to workers over the bus."""

from datetime import timedelta

import pytest

from remuda.core.ids import ReplicaKey
from remuda.scheduler.worker_calls import BusWorker
from remuda.wire import subjects
from remuda.wire.backends import BackendList, BackendListReply, BackendStop, InstalledBackend
from remuda.wire.codec import decode, encode
from tests.support.shared_lines import SharedLines
from tests.unit.scheduler.rig import NODE

pytestmark = pytest.mark.anyio


async def test_process_nobody_heard_of_is_stopped_by_its_exact_key_and_not_by_force() -> None:
    lines = SharedLines()
    await BusWorker(lines).stop_unheard(NODE, ReplicaKey("qwen", 2))
    [sent] = lines.sent
    assert sent.subject == subjects.backend_stop(NODE)
    assert decode(BackendStop, sent.payload) == BackendStop(backend="qwen#2", force=False)


class OneWorker(SharedLines):
    """It answers what it is asked about its backends."""

    async def request(self, subject: str, payload: bytes, limit: timedelta) -> bytes:
        assert (subject, decode(BackendList, payload)) == (subjects.backend_list(NODE), BackendList())
        return encode(BackendListReply(backends=(InstalledBackend(name="cpu-llama-cpp"),)))


async def test_worker_is_asked_which_backends_it_has() -> None:
    listed = await BusWorker(OneWorker()).installed(NODE)
    assert [one.name for one in listed.backends] == ["cpu-llama-cpp"]
