"""Log lines of backend processes, as workers serve them and frontends pass them on."""

from typing import Annotated

from pydantic import RootModel

from remuda.wire.codec import OMIT_EMPTY, OMIT_NONE, Many, Message


class LogLine(Message):
    """One line that a backend wrote."""

    timestamp: str = ""  # RFC 3339.
    stream: str = ""  # stdout or stderr.
    text: str = ""
    approximate: Annotated[bool, OMIT_EMPTY] = False  # It was written at `timestamp` or earlier.


class LogLines(RootModel[list[LogLine]]):
    """The newest lines, oldest first."""


class LogNames(RootModel[list[str]]):
    """The models that have logs on one node."""


class LogFrame(Message):
    """A WebSocket frame: first one of type `initial` with the known lines, then one of type `line` each."""

    type: str = ""
    lines: Annotated[Many[LogLine], OMIT_EMPTY] = ()
    line: Annotated[LogLine | None, OMIT_NONE] = None


class LogEnd(Message):
    """Why a followed log ends; the last event of its stream."""

    code: str = ""
    message: str = ""
