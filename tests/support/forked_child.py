"""A process of a test's own that says lines and is killed: a copy of one that has imported everything, so
that twenty of them cost what one interpreter does."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.processes import start_module

_ENDS_S: Final = 60.0


class ForkedChild:
    """`words` are a module and its arguments; what it writes is kept in `output`, which begins anew."""

    def __init__(self, words: Sequence[str], output: Path, environ: Mapping[str, str] | None = None) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = start_module(words, environ or dict(os.environ), file, file)

    @property
    def lines(self) -> Sequence[str]:
        """Those that are whole."""
        return self._output.read_text(errors="replace").split("\n")[:-1]

    def has_said(self, phase: str) -> bool:
        return any(line.startswith(phase) for line in self.lines)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(_ENDS_S)

    def wait(self) -> int:
        return self._process.wait(_ENDS_S)
