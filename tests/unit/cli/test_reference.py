"""The reference pages that are written by the program are up to date."""

from pathlib import Path

import pytest
from tools.write_reference import pages


@pytest.mark.parametrize("path", list(pages()), ids=lambda path: path.name)
def test_a_written_page_is_current(path: Path) -> None:
    assert path.read_text() == pages()[path], "run tools/write_reference.py"
