"""Who this worker is: a machine id that lasts, a boot id that does not, and a name for people."""

from pathlib import Path

from remuda.core.entropy import Entropy
from remuda.core.errors import Misconfigured
from remuda.core.ids import BootId, MachineId
from remuda.host.identity import stable_id


def machine_id(folder: Path, entropy: Entropy) -> MachineId:
    """The id kept in `folder`, made at the first call."""
    try:
        return MachineId(stable_id(folder / "machine-id", entropy))
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(
            f"this machine's id cannot be kept in {folder}: {error}",
            hint="choose a folder this user can write to with --data-dir",
        ) from error


def boot_id(entropy: Entropy) -> BootId:
    """Made once per process."""
    return BootId(entropy.uuid())


def node_name(setting: str, host_name: str, pid: int) -> str:
    return setting.strip() or host_name.strip() or f"node-{pid}"
