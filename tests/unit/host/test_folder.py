"""Why a data folder cannot be used, in one sentence each."""

import errno
import os
from pathlib import Path

import pytest

from remuda.core.errors import Misconfigured
from remuda.host import folder as module
from remuda.host.folder import DataFolder, write_json


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk of {root} is full ("),
        (errno.EDQUOT, "the disk of {root} cannot be written: this user's disk quota is used up ("),
        (errno.EROFS, "the data folder {root} cannot be used: its file system is read-only"),
        (errno.EACCES, "the data folder {root} cannot be used: Permission denied"),
    ],
)
def test_what_the_system_refused_is_told_with_the_folder(tmp_path: Path, number: int, words: str) -> None:
    refusal = DataFolder(tmp_path).unusable(OSError(number, os.strerror(number)))
    assert refusal.message.startswith(words.format(root=tmp_path))
    assert "--data-dir" in refusal.hint


def test_a_disk_without_inodes_is_not_said_to_need_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_no_inodes", lambda folder: True)
    refusal = DataFolder(tmp_path).unusable(OSError(errno.ENOSPC, "No space left on device"))
    assert refusal.message == f"the disk of {tmp_path} has no inodes left: it holds too many files"


def test_a_folder_of_another_user_names_that_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.owner()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    refusal = DataFolder(tmp_path / "new").unusable(PermissionError(errno.EACCES, "Permission denied"))
    assert f"which belongs to user {owner}, cannot be used" in refusal.message


def test_a_folder_that_is_in_use_names_the_process_and_where_it_answers(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    data.check_free_for("frontend")
    with data.held_by("frontend"):
        write_json(data.endpoint, {"pid": os.getpid(), "url": "http://127.0.0.1:8080"})
        with pytest.raises(Misconfigured) as refused:
            data.check_free_for("frontend")
        with pytest.raises(Misconfigured) as again, data.held_by("frontend"):
            pass
    assert refused.value.message == again.value.message
    assert refused.value.message == (
        f"another frontend (process {os.getpid()}) uses {tmp_path} and answers at http://127.0.0.1:8080"
    )
    data.check_free_for("frontend")
