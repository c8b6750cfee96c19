"""Files of a model whose hashes nobody knows are read before they are copied: two at once, and by nodes for
as long as these need."""

from collections.abc import Sequence
from typing import cast

import anyio
import pytest

from remuda.core.errors import NoAnswerYet, NodeUnreachable, RemudaError
from remuda.fleet.model import Node
from remuda.models.files import NeededFile
from remuda.scheduler.ports import FilePush
from remuda.scheduler.stager import (
    HASHED_AT_ONCE_MAX,
    READ_ASKED_MAX,
    StagingFailed,
    read_at_node,
    with_hashes,
)
from tests.support.nodes import node

pytestmark = pytest.mark.anyio

FILES = [NeededFile(f"{number}.gguf", 1) for number in range(5)]


class Readers:
    """Each waits until as many read as may, or none are left to come."""

    def __init__(self) -> None:
        self.reading = self.most = 0
        self.full = anyio.Event()

    async def sha256(self, file: NeededFile) -> str:
        self.reading += 1
        self.most = max(self.most, self.reading)
        if self.reading == HASHED_AT_ONCE_MAX:
            self.full.set()
        await self.full.wait()
        self.reading -= 1
        return f"hash of {file.path}"


async def test_hashes_stay_with_their_files_and_no_more_are_read_at_once() -> None:
    readers = Readers()
    with anyio.fail_after(30):
        found = await with_hashes(FILES, readers.sha256)
    assert [(one.path, one.sha256) for one in found] == [(one.path, f"hash of {one.path}") for one in FILES]
    assert readers.most == HASHED_AT_ONCE_MAX


async def test_first_that_cannot_be_read_ends_the_others() -> None:
    async def sha256(file: NeededFile) -> str:
        if file is FILES[1]:
            raise StagingFailed("no node that has 1.gguf can be reached now")
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(30), pytest.raises(StagingFailed, match=r"1\.gguf"):
        await with_hashes(FILES, sha256)


class Reading:
    """Nodes that have a file; each question is answered by the next of the `answers`."""

    def __init__(self, *answers: str | RemudaError) -> None:
        self.up = [node(name="gpu-1"), node(name="gpu-2")]
        self.asked: list[str] = []
        self._answers = list(answers)

    async def giving(self) -> Sequence[Node]:
        return self.up

    async def sha256(self, asked: Node, path: str, size: int) -> str:
        self.asked.append(asked.name)
        answer = self._answers.pop(0)
        if isinstance(answer, RemudaError):
            raise answer
        return answer

    async def read(self) -> str:
        return await read_at_node(FILES[0], self.giving, cast(FilePush, self))


LATE = NoAnswerYet("gpu-1 does not say what models/0.gguf is: no answer in time")


async def test_node_that_is_still_reading_is_asked_again() -> None:
    reading = Reading(LATE, LATE, "the hash")
    assert await reading.read() == "the hash"
    assert reading.asked == ["gpu-1", "gpu-1", "gpu-1"]


async def test_another_node_reads_it_when_the_first_one_is_gone() -> None:
    class Leaving(Reading):
        async def sha256(self, asked: Node, path: str, size: int) -> str:
            self.up = self.up[1:] or self.up
            return await super().sha256(asked, path, size)

    reading = Leaving(LATE, "the hash")
    assert await reading.read() == "the hash"
    assert reading.asked == ["gpu-1", "gpu-2"]


async def test_reading_is_given_up_when_no_node_is_up_or_it_never_ends() -> None:
    nobody = Reading()
    nobody.up = []
    with pytest.raises(StagingFailed, match=r"no node that has 0\.gguf can be reached now"):
        await nobody.read()
    with pytest.raises(StagingFailed, match="in time"):
        await Reading(*[LATE] * READ_ASKED_MAX).read()
    with pytest.raises(StagingFailed, match="refused"):
        await Reading(*[REFUSED] * 100).read()


REFUSED = NodeUnreachable("gpu-1 does not say what models/0.gguf is: connection refused")


async def test_node_whose_worker_was_killed_is_asked_again_once_it_is_back() -> None:
    class Restarted(Reading):
        looks = 0

        async def giving(self) -> Sequence[Node]:
            self.looks += 1
            return [] if self.looks in (2, 3) else self.up[:1]  # Not registered again, or listing its files.

    reading = Restarted(REFUSED, REFUSED, "the hash")
    assert await reading.read() == "the hash"
    assert reading.asked == ["gpu-1", "gpu-1", "gpu-1"]


async def test_another_node_is_asked_when_one_refuses() -> None:
    reading = Reading(REFUSED, "the hash")
    assert await reading.read() == "the hash"
    assert reading.asked == ["gpu-1", "gpu-2"]
