"""What other processes install is noticed at once."""

import sys
from itertools import count
from pathlib import Path

import anyio
import pytest

from remuda.worker.depot.watch import changes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
NEVER_S = 3600.0


class Seen:
    def __init__(self) -> None:
        self.changes = 0

    async def count(self, folder: Path, every_s: float) -> None:
        async for _ in changes([folder], every_s):
            self.changes += 1


async def test_the_kernel_says_when_something_was_installed(tmp_path: Path) -> None:
    seen, numbers = Seen(), count()

    def installed_and_seen() -> bool:
        """Again and again, for the first may come before anybody watches."""
        (tmp_path / f"backend-{next(numbers)}").mkdir()
        return seen.changes > 0

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(seen.count, tmp_path, NEVER_S)
        await wait_until(installed_and_seen)
        tasks.cancel_scope.cancel()


async def test_without_the_kernel_and_for_folders_that_are_made_later_it_is_found_by_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "other")
    seen, folder, numbers = Seen(), tmp_path / "backends", count()

    def installed_and_seen() -> bool:
        (folder / f"backend-{next(numbers)}").mkdir(parents=True)
        return seen.changes > 0

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(seen.count, folder, 0.01)
        await wait_until(installed_and_seen)
        tasks.cancel_scope.cancel()
