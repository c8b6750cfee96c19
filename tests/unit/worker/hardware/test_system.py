"""RAM, and the limits that containers and units put on it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from remuda.worker.hardware.model import Capacity
from remuda.worker.hardware.system import disk_id, memory_id, read_memory
from tests.unit.worker.hardware.fixture_host import MODELS_DIR, load

GIB = 1 << 30
MACHINE = Capacity(32768000 * 1024, 30000000 * 1024)


def read(files: Mapping[str, str | None]) -> Capacity | None:
    none: Mapping[str, str | None] = {
        "/sys/fs/cgroup/memory.max": None,
        "/sys/fs/cgroup/memory.current": None,
        "/sys/fs/cgroup/memory.stat": None,
    }
    return read_memory(load("container-with-limit").but(files={**none, **files}))


def test_container_limit_replaces_the_machines_ram_and_cached_files_count_as_free() -> None:
    assert read_memory(load("container-with-limit")) == Capacity(4 * GIB, 2 * GIB)


def test_without_a_limit_the_machine_counts() -> None:
    assert read({"/sys/fs/cgroup/memory.max": "max\n"}) == MACHINE


def test_limit_above_the_machines_ram_changes_nothing() -> None:
    assert read({"/sys/fs/cgroup/memory.max": f"{1 << 50}\n"}) == MACHINE


def test_limit_of_an_outer_group_binds_too() -> None:
    files = {
        "/proc/self/cgroup": "0::/system.slice/remuda.service\n",
        "/sys/fs/cgroup/system.slice/memory.max": f"{8 * GIB}\n",
        "/sys/fs/cgroup/system.slice/memory.current": f"{6 * GIB}\n",
        "/sys/fs/cgroup/system.slice/remuda.service/memory.max": "max\n",
    }

    assert read(files) == Capacity(8 * GIB, 2 * GIB)


def test_full_group_has_nothing_free_rather_than_less_than_nothing() -> None:
    files = {"/sys/fs/cgroup/memory.max": f"{GIB}\n", "/sys/fs/cgroup/memory.current": f"{2 * GIB}\n"}

    assert read(files) == Capacity(GIB, 0)


@pytest.mark.parametrize("path", ["/", "/docker/0123abcd"])
def test_first_generation_of_control_groups_is_respected(path: str) -> None:
    files = {
        "/proc/self/cgroup": f"5:cpu,cpuacct:{path}\n4:memory:{path}\n1:name=systemd:{path}\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        "/sys/fs/cgroup/memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB // 2}\n",
    }

    assert read(files) == Capacity(2 * GIB, GIB + GIB // 2)


def test_first_generation_without_a_limit_means_the_machine() -> None:
    files = {
        "/proc/self/cgroup": "4:memory:/\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }

    assert read(files) == MACHINE


def test_old_kernel_without_an_available_figure_tells_what_is_free() -> None:
    assert read({"/proc/meminfo": "MemTotal: 2048 kB\nMemFree: 1024 kB\n"}) == Capacity(2 << 20, 1 << 20)


def test_unreadable_meminfo_is_unknown() -> None:
    assert read({"/proc/meminfo": "garbage"}) is None


def on_kernel(boot: str | None, file_system: int | None = 66, limit: str = "max\n") -> tuple[str, str]:
    """By what a disk and the RAM are known."""
    files = {"/proc/sys/kernel/random/boot_id": boot, "/sys/fs/cgroup/memory.max": limit}
    host = replace(load("container-with-limit").but(files=files), file_system=file_system)
    return disk_id(host, MODELS_DIR), memory_id(host)


def test_workers_on_one_kernel_know_their_disk_and_ram_by_the_same_names() -> None:
    disk, memory = on_kernel("6f1c\n")
    assert disk
    assert memory not in ("", disk)
    assert on_kernel("6f1c\n") == (disk, memory)
    other_machine = on_kernel("77aa\n")
    assert not {disk, memory} & set(other_machine)
    assert on_kernel("6f1c\n", file_system=67)[0] not in ("", disk)


def test_what_is_not_shared_for_certain_is_its_own() -> None:
    assert on_kernel(None) == ("", "")
    assert on_kernel("6f1c\n", file_system=None)[0] == ""
    assert on_kernel("6f1c\n", limit=f"{4 * GIB}\n")[1] == ""
