"""The log of this process, which commands set up anew."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def log_left_as_it_was() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    try:
        yield
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
        structlog.reset_defaults()
