"""What a worker refuses to start without."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from remuda.assembly.running import Stop
from remuda.assembly.settings import WorkerSettings
from remuda.cli.worker import is_logged, work
from remuda.core.errors import Misconfigured
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
    assert not is_logged(WorkerState(WorkerPhase.REGISTERING), "info")
    assert not is_logged(WorkerState(WorkerPhase.CONNECTING, "no answer"), "info")
