"""The name of a backend process on its worker: `model#replica`. The last `#` counts: ids may hold one."""

from typing import Final, NamedTuple
from urllib.parse import quote

PROCESSES_PATH: Final = "/v1/processes/"
RUNNING_PATH: Final = "/v1/processes"
"""On a worker's HTTP server: the processes that run, as a ModelsRunningReply."""

ROLE_HEADER: Final = "x-remuda-role"
WORKER_ROLE: Final = "worker"
"""In what a worker's HTTP server answers by itself, so that it is not taken for a frontend."""

_INDEX_DIGITS_MAX = 9


class ProcessKey(NamedTuple):
    """One replica's process; `model_id` is the backend's name where no model is tied to it."""

    model_id: str
    replica_index: int

    def __str__(self) -> str:
        return f"{self.model_id}#{self.replica_index}"

    @classmethod
    def parse(cls, text: str) -> "ProcessKey | None":
        """The key in `text`, or None when it names no model or no replica."""
        model_id, _, index = text.rpartition("#")
        if not model_id or not (index.isascii() and index.isdigit()) or len(index) > _INDEX_DIGITS_MAX:
            return None
        return cls(model_id, int(index))


def door_path(key: ProcessKey, path: str = "") -> str:
    """Where a process that speaks HTTP is found on its worker's own server. `path` begins with a slash."""
    return f"{PROCESSES_PATH}{quote(str(key), safe='')}{path}"
