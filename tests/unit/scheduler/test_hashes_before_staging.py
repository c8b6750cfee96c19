"""Files of a model whose hashes nobody knows are read before they are copied, two at once."""

import anyio
import pytest

from remuda.models.files import NeededFile
from remuda.scheduler.stager import HASHED_AT_ONCE_MAX, StagingFailed, with_hashes

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
