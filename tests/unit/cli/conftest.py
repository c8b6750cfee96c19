"""What the tests of commands share."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _log_is_left_as_it_was() -> Iterator[None]:
    """A command may send the log to its own output, which is gone when the test has ended."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    structlog.reset_defaults()
