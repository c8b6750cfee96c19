"""What `remuda up` says when it has started."""

from pathlib import Path

from remuda.assembly.settings import UpSettings
from remuda.cli.up import repeated
from remuda.core.settings import resolve


def test_a_command_to_paste_has_the_flags_that_were_given(tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    flags = {
        "data_dir": str(folder),
        "port": "8081",
        "lan": False,
        "registration_token": "s3cret",
        "auto_approve": False,
    }
    resolved = resolve(UpSettings, flags=flags, environ={"REMUDA_NODE_NAME": "attic"})

    words = repeated("remuda up", resolved)

    assert set(words.partition(" --")[2].split(" --")) == {
        f"data-dir '{folder}'",
        "port 8081",
        "no-auto-approve",
    }
