"""Several files of a model, on their way to a worker that does not fetch for itself."""

from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from remuda.core.errors import PeerFailed
from remuda.fleet.model import Node
from remuda.models.files import NeededFile
from remuda.ops.model import Step
from remuda.scheduler.file_push import PUSHED_AT_ONCE_MAX, FilesPush, Pushed
from remuda.wire.backends import InstallProgress
from remuda.wire.files import WantedFile
from tests.support.clocks import HandClock
from tests.support.op_builders import an_operation, its_steps
from tests.unit.scheduler.standing import a_view

pytestmark = pytest.mark.anyio

FILES = [NeededFile(f"parts/q-{number}.gguf", 100) for number in range(6)]


class Peer:
    """Has a part of each file already. Takes none to its end before so many are on their way."""

    def __init__(self, together: int = 1, refuses: str = "", elsewhere: bool = False) -> None:
        self.together, self.refuses, self.elsewhere = together, refuses, elsewhere
        self.at_once = self.most = 0
        self._open = anyio.Event()

    async def sha256(self, node: Node, path: str, size: int) -> str:
        raise NotImplementedError

    async def push(
        self, node: Node, model: str, local: Path, file: WantedFile, on_size: Callable[[int], None]
    ) -> str:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        if self.at_once >= self.together:
            self._open.set()
        on_size(40)
        await self._open.wait()
        if file.path == self.refuses:
            raise PeerFailed("its disk is full")
        for size in (70, 100):
            on_size(size)
            await anyio.lowlevel.checkpoint()
        self.at_once -= 1
        return "/elsewhere/x" if self.elsewhere else f"/peer/{model}/{file.path}"


async def pushed(peer: Peer, files: Sequence[NeededFile] = FILES) -> tuple[Pushed, list[InstallProgress]]:
    told: list[InstallProgress] = []

    async def hashed(file: NeededFile) -> str:
        return "0" * 64

    push = FilesPush(peer, Path("/models"), hashed, told.append, HandClock())
    step: Step = its_steps(an_operation(), "peer")[0]
    return await push.all(step, "qwen", files, a_view("peer").standing.node), told


async def test_files_go_side_by_side_and_no_more_than_the_limit() -> None:
    peer = Peer(together=PUSHED_AT_ONCE_MAX)
    done, told = await pushed(peer)
    assert peer.most == PUSHED_AT_ONCE_MAX
    assert done == Pushed("/peer/qwen", 360), "what it had is not sent"
    assert [one.seq for one in told] == sorted({one.seq for one in told}), "none is taken for a late one"
    assert [one.current_bytes for one in told] == sorted(one.current_bytes for one in told)
    assert (told[-1].current_bytes, told[-1].total_bytes, told[-1].overall) == (600, 600, 90.0)


async def test_first_failure_ends_the_others() -> None:
    with pytest.raises(PeerFailed, match="its disk is full"):
        await pushed(Peer(refuses="parts/q-1.gguf"))


async def test_file_that_was_put_elsewhere_is_a_failure() -> None:
    with pytest.raises(PeerFailed, match=r"has put parts/q-0\.gguf elsewhere: /elsewhere/x"):
        await pushed(Peer(elsewhere=True), FILES[:1])
