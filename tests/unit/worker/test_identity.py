"""A worker's ids and name."""

import stat
from pathlib import Path

import pytest

from remuda.core.entropy import SeededEntropy
from remuda.core.errors import Misconfigured
from remuda.worker.identity import boot_id, machine_id, node_name


def test_the_machine_id_is_made_once_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    first = machine_id(folder, SeededEntropy(1))
    assert machine_id(folder, SeededEntropy(2)) == first
    assert len(first) == 36


def test_the_machine_id_is_its_owners_alone(tmp_path: Path) -> None:
    machine_id(tmp_path, SeededEntropy(1))
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_folders_have_ids_of_their_own(tmp_path: Path) -> None:
    entropy = SeededEntropy(1)
    assert machine_id(tmp_path / "a", entropy) != machine_id(tmp_path / "b", entropy)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match="--data-dir"):
        machine_id(tmp_path / "file" / "folder", SeededEntropy(1))


def test_every_boot_has_an_id_of_its_own() -> None:
    entropy = SeededEntropy(1)
    assert boot_id(entropy) != boot_id(entropy)


@pytest.mark.parametrize(
    ("setting", "host", "name"),
    [("mine", "host", "mine"), ("", "host", "host"), (" ", " ", "node-7"), ("", "", "node-7")],
)
def test_the_name_is_chosen_else_the_hosts_else_made_up(setting: str, host: str, name: str) -> None:
    assert node_name(setting, host, 7) == name
