"""What a request waits for, in words, one cause after the other. Pure."""

from typing import Final

from remuda.router.loading import LoadStatus

_CAUSES_MAX: Final = 32  # Of one request; the rest is told as one.
_SHORT_S: Final = 0.001  # Less is not worth a word.


class WaitNotes:
    """`at_s`: by a clock that never goes back."""

    def __init__(self) -> None:
        self.over: list[tuple[str, float]] = []
        self._cause = ""
        self._began_s = 0.0

    def begin(self, cause: str, at_s: float) -> None:
        """From now on it waits for this; for the same as before, if that is what it waited for."""
        if cause == self._cause:
            return
        if self._cause and len(self.over) >= _CAUSES_MAX:
            return
        self.end(at_s)
        self._cause, self._began_s = cause, at_s

    def end(self, at_s: float) -> None:
        """It has what it waited for, or has given up."""
        cause, self._cause = self._cause, ""
        took_s = at_s - self._began_s
        if not cause or took_s < _SHORT_S:
            return
        if self.over and self.over[-1][0] == cause:
            took_s += self.over.pop()[1]
        self.over.append((cause, took_s))


def load_cause(status: LoadStatus) -> str:
    """What a load waits for that is so far. No figures: it is one cause as long as it lasts."""
    where = f" on {status.node}" if status.node else ""
    match status.state:
        case _ if status.waits_for:
            return f"room for {status.model} ({status.waits_for})"
        case "installing":
            return f"its backend to be installed{where}"
        case "staging":
            return f"the files of {status.model} to be copied{where.replace(' on ', ' to ')}"
        case "loading":
            return f"{status.model} to be loaded{where}"
        case "pending" if status.node:
            return f"the load of {status.model} to begin{where}"
        case _:
            return f"a node for {status.model}"


def busy_cause(model: str, replicas: int, *, batch: bool = False) -> str:
    if batch:
        return f"a replica of {model} that no other key needs, for its key is of the batch class"
    return f"a free replica of {model}: {_all(replicas)} busy"


def _all(replicas: int) -> str:
    return "the only one was" if replicas == 1 else f"all {replicas} were"
