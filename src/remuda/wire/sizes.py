"""Byte counts as the text that progress messages carry. Made for people: one decimal survives, no more."""

import re
from decimal import Decimal
from typing import Final

_PREFIXES: Final = "KMGTPE"
_SIZE: Final = re.compile(rf"([0-9]{{1,20}}(?:\.[0-9]{{1,9}})?) ?(?:([{_PREFIXES}])i?)?B")


def install_size(size_bytes: int) -> str:
    """As in install progress: `412.0 MiB`."""
    return _scaled(size_bytes, "iB")


def staging_size(size_bytes: int) -> str:
    """As in staging messages: `412.0 MB`, which still counts in steps of 1024."""
    return _scaled(size_bytes, "B")


def parse_size(text: str) -> int | None:
    """The bytes that a size string of either form stands for; None when it is not one (empty: not known)."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    amount, prefix = found.groups()
    exponent = _PREFIXES.index(prefix) + 1 if prefix else 0
    return round(Decimal(amount) * (1 << 10 * exponent))


def _scaled(size_bytes: int, suffix: str) -> str:
    if size_bytes < 1024:
        return f"{size_bytes} B"
    # By whole bytes, not by the rounded text: just below a step Go writes `1024.0 KiB`, and so do we.
    exponent = min((size_bytes.bit_length() - 1) // 10, len(_PREFIXES))
    return f"{size_bytes / (1 << 10 * exponent):.1f} {_PREFIXES[exponent - 1]}{suffix}"
