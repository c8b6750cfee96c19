"""What `remuda join` keeps for `remuda worker`."""

from pathlib import Path

import pytest

from remuda.assembly.settings import WorkerSettings
from remuda.cli.join import to_remember
from remuda.cli.options import resolve_settings


def test_files_are_found_again_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = {"data_dir": "data", "register_to": "https://frontend", "ca": "ca.pem", "registration_token": "t"}
    remembered = to_remember(resolve_settings(WorkerSettings, flags, {}))
    assert remembered == {
        "register_to": "https://frontend",
        "ca": str(tmp_path / "ca.pem"),
        "registration_token": "t",
    }


def test_content_of_a_token_file_is_kept_instead_of_its_name(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    flags = {"data_dir": tmp_path, "register_to": "http://frontend", "registration_token_file": str(file)}
    remembered = to_remember(resolve_settings(WorkerSettings, flags, {}))
    assert remembered == {"register_to": "http://frontend", "registration_token": "s3cret"}
