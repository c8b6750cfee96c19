"""What a worker refuses to start without."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from remuda.assembly.running import Stop
from remuda.assembly.settings import WorkerSettings
from remuda.cli.exits import Exit
from remuda.cli.options import resolve_settings
from remuda.cli.worker import is_logged, to_remember, work
from remuda.core.errors import Misconfigured
from remuda.host.ports import free_port
from remuda.worker.enrolment import WorkerPhase, WorkerState

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (WorkerSettings(registration_token=SecretStr("t")), "REMUDA_REGISTER_TO"),
        (WorkerSettings(register_to="http://127.0.0.1:1"), "REMUDA_REGISTRATION_TOKEN"),
        (WorkerSettings(register_to="127.0.0.1:1", insecure_no_token=True), "http"),
    ],
)
async def test_what_is_missing_is_named(tmp_path: Path, settings: WorkerSettings, named: str) -> None:
    with pytest.raises(Misconfigured) as refusal:
        await work(settings.model_copy(update={"data_dir": tmp_path}), Stop())
    assert named in str(refusal.value)


def test_a_failed_registration_is_told_once_by_the_log_unless_that_is_silent() -> None:
    failed = WorkerState(WorkerPhase.REGISTERING, "connection refused")

    assert is_logged(failed, "info")
    assert not is_logged(failed, "error")
    assert is_logged(WorkerState(WorkerPhase.WAITING_FOR_APPROVAL, "connection refused"), "info")
    assert not is_logged(WorkerState(WorkerPhase.REGISTERING), "info")
    assert not is_logged(WorkerState(WorkerPhase.CONNECTING, "no answer"), "info")


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


def test_join_that_is_stopped_before_it_is_registered_has_not_succeeded(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    program = [sys.executable, "-c", "from remuda.cli.main import main; main()"]
    options = ["--token", "t", "--data-dir", str(tmp_path), "--name", "dun"]
    with subprocess.Popen([*program, "join", url, *options], stderr=subprocess.PIPE, text=True) as joining:
        assert joining.stderr is not None
        assert any("registration_failed" in line for line in joining.stderr)
        joining.send_signal(signal.SIGINT)
        said = joining.stderr.read()
    assert joining.returncode == Exit.INTERRUPTED
    assert "error:" not in said
