"""Who this worker is: a machine id that lasts, a boot id that does not, and a name for people."""

import os
import tempfile
from pathlib import Path

from remuda.core.entropy import Entropy
from remuda.core.errors import Misconfigured
from remuda.core.ids import BootId, MachineId

_FILE = "machine-id"


def machine_id(folder: Path, entropy: Entropy) -> MachineId:
    """The id kept in `folder`, made at the first call. Processes that race for it all get the same one."""
    try:
        return _kept(folder) or _made(folder, entropy)
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(
            f"this machine's id cannot be kept in {folder}: {error}",
            hint="choose a folder this user can write to with --data-dir",
        ) from error


def boot_id(entropy: Entropy) -> BootId:
    return BootId(entropy.uuid())


def node_name(setting: str, host_name: str, pid: int) -> str:
    return setting.strip() or host_name.strip() or f"node-{pid}"


def _kept(folder: Path) -> MachineId | None:
    try:
        return MachineId((folder / _FILE).read_text().strip()) or None
    except FileNotFoundError:
        return None


def _made(folder: Path, entropy: Entropy) -> MachineId:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, draft = tempfile.mkstemp(dir=folder, prefix=_FILE)  # Readable by its owner only.
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(entropy.uuid() + "\n")
            file.flush()
            os.fsync(file.fileno())
        _put_in_place(Path(draft), folder / _FILE)
    finally:
        Path(draft).unlink(missing_ok=True)
    kept = _kept(folder)
    assert kept is not None, "the file was put in place whole"
    return kept


def _put_in_place(draft: Path, target: Path) -> None:
    """Never over an id that is there already; over an empty file, which is nobody's id."""
    try:
        target.hardlink_to(draft)
    except FileExistsError:
        if not target.read_text().strip():
            draft.replace(target)
