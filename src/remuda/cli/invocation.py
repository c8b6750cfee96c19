"""What a command line says, as plain data: whose settings it means, and where the frontend is."""

from dataclasses import dataclass, field
from typing import Final, Literal

ProgramRole = Literal["up", "frontend", "worker"]
ROLES: Final[tuple[ProgramRole, ...]] = ("up", "frontend", "worker")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What the options of a client command say: where the frontend is, and how to answer."""

    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    ca: str | None = None
    data_dir: str | None = None
    as_json: bool = False
