"""Ids that are made once and then kept in a file: the same across restarts, renames and addresses."""

from pathlib import Path

from remuda.core.entropy import Entropy
from remuda.host.folder import write_private


def stable_id(file: Path, entropy: Entropy) -> str:
    """The id in the file; a new one is made, and written whole, where there is none."""
    try:
        held = file.read_text().strip()
    except FileNotFoundError:
        held = ""
    if not held:
        held = entropy.uuid()
        write_private(file, held + "\n")
    return held
