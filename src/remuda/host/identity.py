"""Ids and secrets that are made once and then kept in a file: the same across restarts, renames and
addresses."""

from collections.abc import Callable
from pathlib import Path

from remuda.core.entropy import Entropy
from remuda.host.folder import write_private


def stable_id(file: Path, entropy: Entropy) -> str:
    """The id in the file; a new one is made where there is none."""
    return kept_text(file, entropy.uuid)


def kept_text(file: Path, make: Callable[[], str]) -> str:
    """The text in the file; where there is none a new one is made, and written whole, for its owner only."""
    try:
        held = file.read_text().strip()
    except FileNotFoundError:
        held = ""
    if not held:
        held = make()
        write_private(file, held + "\n")
    return held
