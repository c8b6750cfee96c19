"""What lies beside a file goes with it."""

import os
from pathlib import Path

import pytest

from remuda.worker.files.keys import partial_name
from remuda.worker.files.sidecars import remove_file


@pytest.mark.parametrize("removed_before", range(4))
def test_a_removal_that_is_killed_leaves_nothing_without_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed_before: int
) -> None:
    """And the next one ends it."""
    partial = partial_name("m.bin", "a" * 64)
    for name in ("m.bin", "m.bin.sha256", partial, "m.bin2"):
        (tmp_path / name).write_text("x")
    left, unlink = removed_before, os.unlink

    def killed_after_some(name: str, *, dir_fd: int) -> None:
        nonlocal left
        if left == 0:
            raise SystemExit
        left -= 1
        unlink(name, dir_fd=dir_fd)

    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", killed_after_some)
            try:
                remove_file(folder, "m.bin")
            except SystemExit:
                assert (tmp_path / "m.bin").exists()
        remove_file(folder, "m.bin")
    finally:
        os.close(folder)
    assert os.listdir(tmp_path) == ["m.bin2"]
