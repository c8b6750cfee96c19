"""What a request for a model's files answers."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from remuda.core.clock import SystemClock
from remuda.core.errors import PeerFailed
from remuda.wire.backends import InstallProgress
from remuda.wire.files import FilePhase, FilesFetch, WantedFile
from remuda.worker.commands.running_work import WorkInHand
from remuda.worker.files.hashes import Hashes
from remuda.worker.staging.commands import FetchCommand
from remuda.worker.staging.dropping import FetchedFiles
from remuda.worker.staging.fetching import CheckedFile, ModelFetcher
from remuda.worker.staging.sources import OnTaken

pytestmark = pytest.mark.anyio

FILE = WantedFile(path="a.gguf", size=30, sha256="a" * 64)


class Fetcher:
    """Brings so many bytes from a source, and then what is missing is the next one's."""

    clock = SystemClock()

    def __init__(self, *brought: tuple[str, int]) -> None:
        self._brought = list(brought)

    def checked(self, file: WantedFile) -> CheckedFile:
        return cast(CheckedFile, file)

    async def fetch(
        self, files: Sequence[WantedFile], on_file: Callable[[FilePhase, str, int], None], on_taken: OnTaken
    ) -> None:
        source, size = self._brought.pop(0)
        on_taken(files[0].path, source, size)
        if self._brought and source != "whole":
            raise PeerFailed(f"{source} stopped sending")


async def nothing() -> None:
    """For what this is not about."""


async def sent(progress: InstallProgress) -> None:
    """Nobody watches."""


def command(fetcher: Fetcher, folder: Path) -> FetchCommand:
    deliver: Callable[[], Awaitable[None]] = nothing
    work = WorkInHand(sent, lambda: None, deliver)
    fetched = FetchedFiles(folder, Hashes(), SystemClock(), set)
    return FetchCommand(cast(ModelFetcher, fetcher), work, fetched, nothing)


async def taken(command: FetchCommand, op_id: str, file: WantedFile | None = None) -> dict[str, int]:
    reply = await command.fetch(FilesFetch(model="a", op_id=op_id, files=(file or FILE,)))
    return {one.source: one.size for one in reply.taken}


async def test_bytes_of_requests_that_broke_off_are_told_with_the_last_one(tmp_path: Path) -> None:
    asked = command(Fetcher(("gpu-1", 10), ("gpu-2", 20)), tmp_path)
    with pytest.raises(PeerFailed):
        await taken(asked, "op")
    assert await taken(asked, "op") == {"gpu-1": 10, "gpu-2": 20}


async def test_bytes_are_not_told_with_another_operation_nor_with_other_files_of_the_same(
    tmp_path: Path,
) -> None:
    asked = command(Fetcher(("gpu-1", 10), ("whole", 20), ("whole", 5), ("whole", 7)), tmp_path)
    with pytest.raises(PeerFailed):
        await taken(asked, "op")
    assert await taken(asked, "another") == {"whole": 20}
    assert await taken(asked, "op") == {"gpu-1": 10, "whole": 5}
    assert await taken(asked, "op", FILE.model_copy(update={"path": "b.gguf"})) == {"whole": 7}


async def test_bytes_are_told_again_to_the_frontend_that_takes_over(tmp_path: Path) -> None:
    """The one that was answered may have died before it could write that down."""
    asked = command(Fetcher(("whole", 20), ("whole", 0)), tmp_path)
    assert await taken(asked, "op") == await taken(asked, "op") == {"whole": 20}
