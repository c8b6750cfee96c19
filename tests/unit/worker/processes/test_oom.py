"""Where out-of-memory kills are counted."""

from pathlib import Path

from remuda.worker.processes.machine import oom_kills


def written(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_the_own_control_group_counts_before_the_machine(tmp_path: Path) -> None:
    written(tmp_path, "proc/self/cgroup", "12:cpu:/x\n0::/system.slice/remuda.service\n")
    written(
        tmp_path,
        "sys/fs/cgroup/system.slice/remuda.service/memory.events",
        "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n",
    )
    written(tmp_path, "proc/vmstat", "nr_free_pages 5\noom_kill 9\n")

    assert oom_kills(tmp_path) == 2


def test_the_older_hierarchy_is_read_too(tmp_path: Path) -> None:
    written(tmp_path, "proc/self/cgroup", "4:cpu,memory:/docker/x\n0::/\n")
    written(tmp_path, "sys/fs/cgroup/memory/docker/x/memory.oom_control", "under_oom 0\noom_kill 4\n")

    assert oom_kills(tmp_path) == 4


def test_outside_of_a_group_the_machine_counts(tmp_path: Path) -> None:
    written(tmp_path, "proc/self/cgroup", "0::/\n")
    written(tmp_path, "proc/vmstat", "nr_free_pages 5\noom_kill 9\n")

    assert oom_kills(tmp_path) == 9


def test_where_nothing_is_counted_nothing_is_known(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) is None
