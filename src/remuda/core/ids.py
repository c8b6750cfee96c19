"""One type per kind of id. Ours are valid NATS tokens as they stand."""

from typing import NamedTuple, NewType

NodeId = NewType("NodeId", str)
"""A node's UUID, given by the frontend at first registration, kept for the life of its row."""

BootId = NewType("BootId", str)
"""One life of a worker process. A peer that sends none gets a new one at each registration."""

MachineId = NewType("MachineId", str)
"""A worker's data folder: random, made once, the same across restarts and renames."""

FrontendId = NewType("FrontendId", str)
"""One life of a frontend process."""


class ReplicaKey(NamedTuple):
    """Which replica of a model. The number is unique in the whole fleet, so the key is, too. A tuple, which
    is hashed without a step in Python: every request does so several times."""

    model: str
    index: int  # type: ignore[assignment]  # Hides the tuples' method of this name, which is not used.

    def __str__(self) -> str:
        return f"{self.model}#{self.index}"
