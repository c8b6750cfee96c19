"""Where the depot keeps what, and what a backend may be called. Touches no disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from remuda.core.errors import Invalid
from remuda.host.folder import DataFolder

RUN_FILE: Final = "run.sh"
MANIFEST_FILE: Final = "remuda.yaml"  # Tells how to run a backend that has no run file, or speaks HTTP.
METADATA_FILE: Final = "metadata.json"
RECORD_FILE: Final = ".remuda.json"
PROVEN_FILE: Final = ".remuda-proven"
START_FAILED_FILE: Final = ".remuda-start-failed.json"  # Why its last start failed; gone once it has started.

NAME_BYTES_MAX: Final = 200  # Leaves room for what is put behind it.
# What LocalAI calls folders while it replaces one: half-made, or about to go.
PASSING_SUFFIXES: Final = (".install-tmp", ".install-backup", ".upgrade-tmp", ".backup")


@dataclass(frozen=True, slots=True)
class DepotLayout:
    """`backends` holds one folder per installed backend, and in a hidden one what is on its way there or out:
    renaming is atomic only within one file system. `blobs` may be on another."""

    backends: Path
    system: Path
    blobs: Path

    @classmethod
    def of(cls, data: DataFolder, backends: Path | None, system: Path) -> "DepotLayout":
        return cls(backends or data.worker / "backends", system, data.worker / "depot")

    @property
    def folders(self) -> tuple[Path, Path]:
        """Where installed backends are found."""
        return self.backends, self.system

    def installed(self, name: str) -> Path:
        return self.backends / name

    def staging(self, name: str) -> Path:
        """Being made; of no use until it is whole."""
        return self._hidden("staging") / name

    def ready(self, name: str) -> Path:
        """Whole and decided upon: it takes the installed folder's place, whatever happens in between."""
        return self._hidden("ready") / name

    def previous(self, name: str) -> Path:
        """The version before, kept until the installed one has run."""
        return self._hidden("previous") / name

    def trash(self, name: str) -> Path:
        """What is to go, numbered: it waits there while a process still runs from it."""
        return self._hidden("trash") / name

    def last_start(self, name: str) -> Path:
        """What it was last started with; a file."""
        return self._hidden("started") / name

    def lock(self, name: str) -> Path:
        return self._hidden("locks") / name

    def names_in(self, kind: str) -> list[str]:
        """Names that have a folder of this kind: staging, ready, previous or trash."""
        try:
            return sorted(path.name for path in self._hidden(kind).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _hidden(self, kind: str) -> Path:
        return self.backends / ".remuda" / kind


def checked_name(text: str) -> str:
    """The name as a folder's. A slash becomes two underscores, as with peers. Invalid for what cannot be."""
    name = text.strip().replace("/", "__")
    if not name or name.startswith((".", "-")) or len(name.encode()) > NAME_BYTES_MAX:
        fault = f"{text[:60]!r} is not a valid backend name"
    elif not name.isprintable() or "\\" in name:
        fault = f"{text[:60]!r} contains characters that are not allowed in backend names"
    elif name.endswith(PASSING_SUFFIXES):
        fault = f"{text[:60]!r} ends like a folder that is being replaced"
    else:
        return name
    raise Invalid(fault, hint=f"use up to {NAME_BYTES_MAX} letters, digits and . _ - @, a letter first")
