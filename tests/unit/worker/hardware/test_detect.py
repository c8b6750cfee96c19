"""The machine's figures, also when a driver does not answer."""

import threading
from functools import partial
from pathlib import Path

import anyio
import pytest

from remuda.core import limits
from remuda.fleet.model import ram_ceiling
from remuda.worker.hardware import detect as detect_module
from remuda.worker.hardware.detect import HardwareInventory, detect, refresh
from remuda.worker.hardware.host import SystemHost
from remuda.worker.hardware.model import Capacity

pytestmark = pytest.mark.anyio


class WedgedHost(SystemHost):
    """This machine, whose disk figures come only while `answers` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.held: list[threading.Thread] = []

    def disk_usage(self, path: str) -> Capacity | None:
        self.held.append(threading.current_thread())
        assert self.answers.wait(timeout=30)
        return Capacity(2, 1)


async def test_figures_are_of_this_machine(tmp_path: Path) -> None:
    found = await HardwareInventory(SystemHost(), tmp_path).current()
    assert found.total_ram > 0
    assert found.total_disk


async def test_a_wedged_driver_costs_figures_and_not_the_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HARDWARE_S", 0.05)
    host = WedgedHost()
    inventory = HardwareInventory(host, tmp_path)
    unknown = [await inventory.current(), await inventory.current()]
    host.answers.set()
    monkeypatch.setattr(limits, "HARDWARE_S", 20.0)
    assert [found.total_disk for found in unknown] == [None, None]
    assert unknown[0].problems
    assert (await inventory.current()).total_disk == 2


async def test_last_known_figures_stand_while_nothing_new_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = WedgedHost()
    host.answers.set()
    inventory = HardwareInventory(host, tmp_path)
    known = await inventory.current()
    host.answers.clear()
    monkeypatch.setattr(limits, "HARDWARE_S", 0.05)
    assert await inventory.current() == known
    host.answers.set()


async def test_a_wedged_driver_holds_one_thread_and_not_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HARDWARE_S", 0.05)
    host = WedgedHost()
    inventory = HardwareInventory(host, tmp_path)
    for _ in range(5):
        await inventory.current()
    assert [thread.daemon for thread in host.held] == [True]
    host.answers.set()


async def test_who_asks_at_the_same_time_shares_one_look(tmp_path: Path) -> None:
    host = WedgedHost()
    host.answers.set()
    inventory = HardwareInventory(host, tmp_path)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(inventory.current)
    assert len(host.held) == 1


@pytest.mark.parametrize(
    ("budget", "total", "available"),
    [("", 64, 60), ("16GiB", 16, 16), ("50%", 32, 32), ("62GiB", 62, 60), ("900GiB", 64, 60)],
)
def test_no_more_ram_is_told_than_models_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str, total: int, available: int
) -> None:
    monkeypatch.setattr(detect_module, "read_memory", lambda host: Capacity(64 << 30, 60 << 30))
    ceiling = partial(ram_ceiling, budget)
    found = detect(SystemHost(), tmp_path, ceiling)
    assert (found.total_ram >> 30, found.available_ram >> 30) == (total, available)
    again = refresh(found, SystemHost(), tmp_path, ceiling)
    assert found.ram_is_budget == again.ram_is_budget == bool(budget)
    assert (again.total_ram >> 30, again.available_ram >> 30) == (total, available)
