"""What a process says of its settings when it starts."""

import io
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import structlog

from remuda.assembly.running import log_as
from remuda.assembly.settings import WorkerSettings
from remuda.core.settings import resolve
from remuda.host.folder import DataFolder


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.mark.parametrize("held", [False, True])
def test_a_models_folder_that_does_not_exist_is_said_at_the_start_by_one_process(
    tmp_path: Path, held: bool
) -> None:
    folder, stream = DataFolder(tmp_path), io.StringIO()
    folder.prepare()
    flags = {"data_dir": tmp_path, "models_path": str(tmp_path / "modles"), "log_format": "console"}
    with folder.held_by("frontend") if held else nullcontext():
        log_as(resolve(WorkerSettings, flags=flags, environ={}), stream)
    assert ("The models folder is missing" in stream.getvalue()) is not held
