"""Labels: which the frontend writes by itself, how a registration merges them, how selectors match. Pure."""

from collections.abc import Mapping

from remuda.fleet.model import Label, LabelSource, Resources

RESERVED_PREFIX = "node."  # What nodes are is not for admins to say.
_GIB = 1 << 30
_BUCKETS_GIB = ((80, "80GB+"), (48, "48GB"), (24, "24GB"), (16, "16GB"), (8, "8GB"))


def vram_bucket(total_vram: int) -> str:
    whole = total_vram // _GIB
    return next((name for least, name in _BUCKETS_GIB if whole >= least), f"{whole}GB")


def auto_labels(name: str, resources: Resources, max_replicas: int) -> Mapping[str, str]:
    labels = {"node.name": name, "node.replica-slots": str(max_replicas)}
    if resources.gpu_vendor:
        labels["gpu.vendor"] = resources.gpu_vendor
    if resources.total_vram > 0:
        labels["gpu.vram"] = vram_bucket(resources.total_vram)
    return labels


def merged(
    existing: Mapping[str, Label], from_worker: Mapping[str, str], automatic: Mapping[str, str]
) -> Mapping[str, Label]:
    """The labels after a registration: an admin's stay as they are, all others are written anew."""
    written = {key: Label(value, LabelSource.WORKER) for key, value in from_worker.items()}
    written |= {key: Label(value, LabelSource.AUTO) for key, value in automatic.items()}
    return written | {key: label for key, label in existing.items() if label.source is LabelSource.ADMIN}


def matches(labels: Mapping[str, Label], selector: Mapping[str, str]) -> bool:
    """Every pair of the selector is there; the empty selector matches everything."""
    return all(key in labels and labels[key].value == value for key, value in selector.items())
