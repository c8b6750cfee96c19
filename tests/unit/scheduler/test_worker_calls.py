"""What is said to workers over the bus."""

import pytest

from remuda.scheduler.model import ReplicaKey
from remuda.scheduler.worker_calls import BusWorker
from remuda.wire import subjects
from remuda.wire.backends import BackendStop
from remuda.wire.codec import decode
from tests.unit.router.frontends import SharedLines
from tests.unit.scheduler.rig import NODE

pytestmark = pytest.mark.anyio


async def test_process_nobody_heard_of_is_stopped_by_its_exact_key_and_not_by_force() -> None:
    lines = SharedLines()
    await BusWorker(lines).stop_unheard(NODE, ReplicaKey("qwen", 2))
    [sent] = lines.sent
    assert sent.subject == subjects.backend_stop(NODE)
    assert decode(BackendStop, sent.payload) == BackendStop(backend="qwen#2", force=False)
