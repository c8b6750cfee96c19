"""A command that waits for events notices that nothing reads its output any more."""

import io
import os
from pathlib import Path

import pytest

from remuda.cli.output import raise_if_reader_gone, reader_gone


def test_a_pipe_whose_reader_has_gone_is_an_error_before_anything_is_written() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as output:
        assert not reader_gone(output)
        os.close(read_end)
        with pytest.raises(BrokenPipeError):
            raise_if_reader_gone(output)


def test_a_file_or_captured_output_has_no_reader_that_could_go(tmp_path: Path) -> None:
    with (tmp_path / "lines").open("w") as output:
        assert not reader_gone(output)
    assert not reader_gone(output)  # Closed.
    assert not reader_gone(io.StringIO())
