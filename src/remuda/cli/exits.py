"""How a command ends: the exit code of every outcome, and how expected errors are printed."""

import json
import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from remuda.cli.output import in_lines, one_line
from remuda.core.errors import (
    Forbidden,
    FrontendUnreachable,
    Misconfigured,
    NotFound,
    Problem,
    Rejected,
    RemudaError,
    Unauthorized,
)


class Exit(IntEnum):
    """Programs may rely on these; docs/reference/cli.md lists them."""

    DONE = 0
    DEFECT = 1
    MISUSED = 2
    UNREACHABLE = 3
    REFUSED = 4
    NOT_FOUND = 5
    REJECTED = 6
    UNAVAILABLE = 7
    UNHEALTHY = 8
    NOT_EVERYWHERE = 9
    UNFINISHED = 10
    INTERRUPTED = 130


MEANINGS: Final = {
    Exit.DONE: "Done.",
    Exit.DEFECT: "A bug in Remuda.",
    Exit.MISUSED: "Usage error: the command line or a setting is not valid.",
    Exit.UNREACHABLE: "The frontend cannot be reached.",
    Exit.REFUSED: "Access denied: the key or token is missing, wrong, or not allowed to do this.",
    Exit.NOT_FOUND: "Not found: nothing has that name or id.",
    Exit.REJECTED: "Rejected: a value is not valid, or conflicts with the present state.",
    Exit.UNAVAILABLE: "Something it depends on (database, bus, a program, a peer) does not work now.",
    Exit.UNHEALTHY: "`remuda doctor` found a problem.",
    Exit.NOT_EVERYWHERE: "The operation failed on a node, or was cancelled.",
    Exit.UNFINISHED: "The operation did not finish within `--timeout`. It continues.",
    Exit.INTERRUPTED: "Interrupted by Ctrl-C, or by answering no. An operation that has begun continues.",
}


class Interrupted(RemudaError):
    """A person stopped waiting."""

    code = "interrupted"


class Unfinished(RemudaError):
    """The wait has ended; the operation continues."""

    code = "unfinished"


# The first class that fits counts.
_BY_CLASS: Final[tuple[tuple[type[RemudaError], Exit], ...]] = (
    (Interrupted, Exit.INTERRUPTED),
    (Unfinished, Exit.UNFINISHED),
    (Misconfigured, Exit.MISUSED),
    (FrontendUnreachable, Exit.UNREACHABLE),
    (Unauthorized, Exit.REFUSED),
    (Forbidden, Exit.REFUSED),
    (NotFound, Exit.NOT_FOUND),
    (Rejected, Exit.REJECTED),
    (RemudaError, Exit.UNAVAILABLE),
)


def exit_of(error: RemudaError) -> Exit:
    return next(code for kind, code in _BY_CLASS if isinstance(error, kind))


def report(problem: Problem, *, as_json: bool, details: Sequence[str] = (), is_error: bool = True) -> None:
    """One plain line on standard error, one for each of the `details`, and one with what to do; or the same
    as one JSON document, without the details. Not `is_error`: it is as the person wanted it."""
    if as_json:
        document = {"code": problem.code, "message": problem.message, "hint": problem.hint}
        print(json.dumps({"error": document}), file=sys.stderr)
        return
    print(f"{'error: ' if is_error else ''}{in_lines(problem.message, details)}", file=sys.stderr)
    if problem.hint:
        print(f"hint: {one_line(problem.hint)}", file=sys.stderr)
