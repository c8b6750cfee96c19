"""Which variables reach backends, from the settings of a worker, and through `remuda up`."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from remuda.assembly.frontend import RunningFrontend
from remuda.assembly.settings import UpSettings, WorkerSettings
from remuda.assembly.up import worker_environment
from remuda.cli.options import resolve_settings
from remuda.core.errors import Misconfigured

SHELL = {
    "HF_TOKEN": "a",
    "LOCALAI_LOG_LEVEL": "debug",
    "LOCALAI_OTHER": "b",
    "REMUDA_BACKEND_ENV": "HF_TOKEN",
}


def test_the_worker_of_up_has_what_is_for_backends_and_no_other_setting(tmp_path: Path) -> None:
    resolved = resolve_settings(UpSettings, {"data_dir": str(tmp_path)}, SHELL)
    frontend = cast(RunningFrontend, SimpleNamespace(local_url="http://127.0.0.1:1", token=None))

    environ = worker_environment(resolved, frontend, SHELL)

    assert (environ["HF_TOKEN"], environ["LOCALAI_LOG_LEVEL"]) == ("a", "debug")
    assert environ["REMUDA_BACKEND_ENV"] == "HF_TOKEN"
    assert "LOCALAI_OTHER" not in environ


@pytest.mark.parametrize("value", ["A B", "*", "A=1", "A-*"])
def test_what_is_no_name_is_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="accepted: NAME,NAME"):
        resolve_settings(WorkerSettings, {"data_dir": str(tmp_path)}, {"REMUDA_BACKEND_ENV": value})
