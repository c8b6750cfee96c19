"""What frontends tell each other of models whose files are on their way, as section 2.6.3 has it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import anyio
import pytest

from remuda.core.ids import ReplicaKey
from remuda.ops.model import Kind, ReplicaTarget
from remuda.ops.progress import LiveProgress
from remuda.scheduler.staging_broadcasts import FORGOTTEN_S, StagingBroadcasts, is_due, staging_status
from remuda.wire.broadcasts import StagingProgress, StagingStatus
from remuda.wire.codec import encode
from tests.support.clocks import HandClock
from tests.support.nodes import NOON
from tests.support.waiting import wait_until
from tests.unit.ops.build import running

pytestmark = pytest.mark.anyio
MB = 1 << 20
LIVE = LiveProgress(
    1,
    seq=1,
    phase="staging",
    file_name="Copying 2/3 parts/q-2.gguf",
    current_bytes=5 * MB,
    total_bytes=20 * MB,
    file_number=2,
    file_count=3,
    file_bytes=MB,
    file_size=8 * MB,
    rate_bytes_s=412.0 * MB,
)
STEP = replace(running(), kind=Kind.LOAD, target=ReplicaTarget(ReplicaKey("qwen", 0), "r1"))


@dataclass(frozen=True)
class Heard:
    payload: bytes
    subject: str = "staging.qwen.progress"


@dataclass
class Lines:
    """A bus that keeps what is said."""

    said: list[tuple[str, bytes]] = field(default_factory=list)

    async def publish(self, subject: str, payload: bytes) -> None:
        self.said.append((subject, payload))

    async def subscribe(self, subject: str, handler: object) -> object:
        assert subject == "staging.*.progress"
        return None

    async def request(self, subject: str, payload: bytes, limit: object) -> bytes:
        raise NotImplementedError


@dataclass
class Board:
    live: LiveProgress | None = None

    def of(self, op: str, node: str) -> LiveProgress | None:
        return self.live


class Frontend:
    def __init__(self) -> None:
        self.lines, self.board, self.clock = Lines(), Board(), HandClock()
        self.told = StagingBroadcasts(self.lines, self.board, self.clock)

    async def hears(self, model: str = "qwen", *, done: bool = False, node: str = "theirs") -> None:
        status = None if done else StagingStatus(model_id=model, node_name=node, progress=50)
        await self.told._hear(Heard(encode(StagingProgress(model_id=model, status=status, done=done))))

    def shown(self) -> list[tuple[str, str]]:
        return [(one.model_id, one.node_name) for one in self.told.heard()]

    async def said(self, count: int) -> list[dict[str, object]]:
        await wait_until(lambda: len(self.lines.said) >= count, within=10, what=f"{count} messages")
        return [json.loads(payload) for _, payload in self.lines.said]


@asynccontextmanager
async def at_work(frontend: Frontend) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        await tasks.start(frontend.told.run)
        yield
        tasks.cancel_scope.cancel()


def test_status_has_the_current_file_and_the_share_of_all() -> None:
    status = staging_status("qwen", "attic", LIVE, NOON)
    assert json.loads(encode(status)) == {
        "model_id": "qwen",
        "node_name": "attic",
        "file_name": "parts/q-2.gguf",
        "speed": "412.0 MB/s",
        "message": "Copying 2/3 parts/q-2.gguf: 1.0 MB of 8.0 MB",
        "bytes_sent": MB,
        "total_bytes": 8 * MB,
        "progress": 25,
        "file_index": 2,
        "total_files": 3,
        "started_at": json.loads(encode(StagingStatus(started_at=NOON)))["started_at"],
    }


def test_source_of_a_file_is_no_part_of_its_name() -> None:
    named = replace(LIVE, file_name="Copying 2/3 parts/q (1).gguf (from object storage)")
    assert staging_status("qwen", "attic", named, NOON).file_name == "parts/q (1).gguf"


def test_nothing_is_said_to_have_arrived_while_a_file_is_hashed() -> None:
    hashing = replace(LIVE, phase="hashing", file_name="Hashing q.gguf", file_size=0, rate_bytes_s=None)
    status = staging_status("qwen", "attic", hashing, NOON)
    assert (status.file_name, status.bytes_sent, status.progress, status.speed) == ("q.gguf", 0, 0.0, "")


@pytest.mark.parametrize(
    ("changes", "since_s", "due"),
    [
        ({}, 99.0, False),
        ({"bytes_sent": 2 * MB}, 0.9, False),
        ({"bytes_sent": 2 * MB}, 1.0, True),
        ({"bytes_sent": 8 * MB}, 0.1, True),
        ({"file_name": "parts/q-3.gguf", "file_index": 3}, 0.1, True),
    ],
)
def test_bytes_are_told_once_a_second_and_ends_of_files_at_once(
    changes: dict[str, object], since_s: float, due: bool
) -> None:
    last = staging_status("qwen", "attic", LIVE, NOON)
    assert is_due(last, last.model_copy(update=changes), since_s) is due
    assert is_due(None, last, 0.0)


async def test_start_and_end_of_a_staging_are_told() -> None:
    frontend = Frontend()
    async with at_work(frontend):
        with frontend.told.of(STEP, "qwen.v1"):
            (start,) = await frontend.said(1)
            frontend.board.live = LIVE
            file = (await frontend.said(2))[1]
        end = (await frontend.said(3))[2]
    assert {subject for subject, _ in frontend.lines.said} == {"staging.qwen-v1.progress"}
    assert (start["model_id"], start["done"]) == ("qwen.v1", False)
    assert StagingStatus.model_validate(file["status"], strict=False).file_index == 2
    assert end == {"model_id": "qwen.v1", "done": True}


async def test_what_others_tell_is_shown_until_it_is_done_or_a_minute_old() -> None:
    frontend = Frontend()
    await frontend.hears("qwen")
    await frontend.hears("bge")
    assert frontend.shown() == [("bge", "theirs"), ("qwen", "theirs")]
    await frontend.hears("qwen", done=True)
    assert frontend.shown() == [("bge", "theirs")]
    frontend.clock.advance(timedelta(seconds=FORGOTTEN_S - 1))
    await frontend.hears("late")
    frontend.clock.advance(timedelta(seconds=2))
    assert frontend.shown() == [("late", "theirs")]


async def test_own_staging_ignores_what_others_say_of_it() -> None:
    frontend = Frontend()
    await frontend.hears("qwen")
    with frontend.told.of(STEP, "qwen"):
        assert frontend.shown() == []
        await frontend.hears("qwen")
        assert frontend.shown() == []


async def test_messages_that_cannot_be_read_are_ignored() -> None:
    frontend = Frontend()
    for payload in (b"", b"[]", b'{"model_id": 7}', b'{"model_id": "x", "status": {"progress": "1"}}'):
        await frontend.told._hear(Heard(payload))
    assert frontend.shown() == []
