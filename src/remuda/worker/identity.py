"""Who this worker is (a machine id and a secret that last, a boot id that does not, a name for people), and
how it introduces itself when it registers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from remuda.core.entropy import Entropy
from remuda.core.errors import Misconfigured
from remuda.core.ids import BootId, MachineId
from remuda.core.os_errors import os_reason
from remuda.host.folder import kept_text, stable_id
from remuda.wire.nodes import ARCHITECTURE_LABEL, OS_LABEL, SECRET_PREFIX, RegisterRequest, WorkerIdentity
from remuda.worker.addresses import Advertised
from remuda.worker.hardware.model import Hardware


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


_REPLICA_SLOTS = "node.replica-slots"


@dataclass(frozen=True, slots=True)
class Introduction:
    """What stays the same over one life of a worker."""

    name: str
    machine_id: MachineId
    boot_id: BootId
    version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    max_replicas_per_model: int = 1
    vram_budget: str = ""


def register_request(worker: Introduction, hardware: Hardware, reached_at: Advertised) -> RegisterRequest:
    """Without the token, which is the frontend client's to add. Figures that are not known are left out."""
    return RegisterRequest(
        name=worker.name,
        address=reached_at.address,
        http_address=reached_at.http_address,
        total_vram=hardware.total_vram,
        available_vram=hardware.available_vram,
        total_ram=hardware.total_ram or None,
        available_ram=hardware.available_ram if hardware.total_ram else None,
        total_disk=hardware.total_disk,
        available_disk=hardware.available_disk,
        gpu_vendor=hardware.gpu_vendor,
        gpu_compute_capability=hardware.gpu_compute_capability,
        capability=hardware.capability,
        max_replicas_per_model=worker.max_replicas_per_model,
        vram_budget=worker.vram_budget,
        labels={**worker.labels, **_own_labels(worker, hardware)},
        machine_id=worker.machine_id,
        remuda=WorkerIdentity(version=worker.version, boot_id=worker.boot_id),
    )


def _own_labels(worker: Introduction, hardware: Hardware) -> dict[str, str]:
    """What frontends choose builds by, beside the capability; left out where it is not known."""
    labels = {
        _REPLICA_SLOTS: str(worker.max_replicas_per_model),
        OS_LABEL: hardware.os,
        ARCHITECTURE_LABEL: hardware.architecture,
    }
    return {name: value for name, value in labels.items() if value}
