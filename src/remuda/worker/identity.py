"""Who this worker is: a machine id and a secret that last, a boot id that does not, a name for people."""

from pathlib import Path

from pydantic import SecretStr

from remuda.core.entropy import Entropy
from remuda.core.errors import Misconfigured
from remuda.core.ids import BootId, MachineId
from remuda.core.os_errors import os_reason
from remuda.host.identity import kept_text, stable_id
from remuda.wire.nodes import SECRET_PREFIX


def machine_id(folder: Path, entropy: Entropy) -> MachineId:
    """The id kept in `folder`, made at the first call."""
    try:
        return MachineId(stable_id(folder / "machine-id", entropy))
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(
            f"this machine's id cannot be stored in {folder}: {_reason(error)}",
            hint="choose a folder this user can write to with --data-dir",
        ) from error


def node_secret(folder: Path, entropy: Entropy) -> SecretStr:
    """What proves to frontends that this is the same machine, kept in `folder` and made at the first call."""
    try:
        return SecretStr(kept_text(folder / "node-secret", lambda: SECRET_PREFIX + entropy.token(32)))
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(
            f"this machine's secret cannot be stored in {folder}: {_reason(error)}",
            hint="choose a folder this user can write to with --data-dir",
        ) from error


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return os_reason(error) if isinstance(error, OSError) else "what is there is not text"


def boot_id(entropy: Entropy) -> BootId:
    """Made once per process."""
    return BootId(entropy.uuid())


def node_name(setting: str, host_name: str, pid: int) -> str:
    return setting.strip() or host_name.strip() or f"node-{pid}"
