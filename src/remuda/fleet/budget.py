"""VRAM budgets: `80%`, `0.8`, `12GB`, `12GiB` or a plain byte count. Pure.

The total a node reports stays raw; the budget only caps what may be used of it.
"""

import math
import re

from remuda.core.errors import Invalid
from remuda.fleet.model import Node

ACCEPTED = "80%, 0.8, 12GB, 12GiB or a number of bytes"
_AMOUNT = re.compile(r"^\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>%|[kmgt]i?b|b|)\s*$", re.IGNORECASE)
_UNITS = {"b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def ceiling(budget: str, total: int) -> int | None:
    """The most bytes of `total` that may be used; None for no cap. Raises Invalid for other text."""
    if not budget.strip():
        return None
    found = _AMOUNT.match(budget)
    if found is None:
        raise Invalid(f"VRAM budget {budget!r} is not valid", hint=f"use {ACCEPTED}")
    number, unit = float(found["number"]), found["unit"].lower()
    if unit == "%":
        return _share(budget, number / 100, total)
    if unit == "" and (number < 1 or "." in found["number"]):
        return _share(budget, number, total)
    if unit == "" and number == 1:
        return total
    amount = number * _UNITS.get(unit, 1)
    if amount < 1 or not math.isfinite(amount) or amount >= 2**63:
        raise Invalid(f"VRAM budget {budget!r} is out of range", hint=f"use {ACCEPTED}")
    return min(int(amount), total)


def _share(budget: str, fraction: float, total: int) -> int:
    if not 0 < fraction <= 1:
        raise Invalid(f"VRAM budget {budget!r} is not between 0 and all of it", hint=f"use {ACCEPTED}")
    return int(total * fraction)


def node_ceiling(node: Node) -> int | None:
    """A worker's budget that cannot be read means no cap, as its peers expect; an admin's was checked."""
    try:
        return ceiling(node.effective_budget, node.resources.total_vram)
    except Invalid:
        return None


def usable_vram(node: Node) -> int:
    cap = node_ceiling(node)
    free = node.resources.available_vram
    return free if cap is None else min(free, cap)
