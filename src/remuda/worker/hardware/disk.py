"""Room on the file system that holds, or will hold, the models."""

from pathlib import Path

from remuda.worker.hardware.host import Host
from remuda.worker.hardware.model import Capacity


def read(host: Host, models_dir: Path) -> Capacity | None:
    """Usage of the folder's file system; a folder not made yet counts as its nearest existing parent."""
    nearest = next((path for path in (models_dir, *models_dir.parents) if host.exists(str(path))), None)
    return None if nearest is None else host.disk_usage(str(nearest))
