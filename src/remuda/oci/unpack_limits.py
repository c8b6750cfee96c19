"""What one image may cost the machine that unpacks it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """Bounds for one image, all its layers together unless said otherwise.

    The defaults leave room for the largest images seen in the wild (CUDA libraries beside a Python
    environment: some 20 GB and 100,000 files) and stop what no such image needs.
    """

    entries_max: int = 1_000_000
    bytes_max: int = 256 << 30  # Unpacked; holes in sparse files count.
    file_bytes_max: int = 128 << 30
    depth_max: int = 128  # Each level costs an open file while unpacking.
    name_bytes_max: int = 255  # Of one path component; no common file system takes more.
    path_bytes_max: int = 2048  # Leaves room for the folder's own path below the usual 4096.
    metadata_bytes_max: int = 1 << 20  # One pax header, long name or sparse map.
    sparse_segments_max: int = 10_000
    ratio_max: int = 200  # Unpacked to packed, of one layer...
    ratio_free_bytes: int = (
        1 << 30
    )  # ...once it has unpacked to so much: zeros pack well, and small ones do no harm.
    zstd_window_bytes_max: int = 128 << 20  # What the zstd program takes unasked; memory is used as needed.
