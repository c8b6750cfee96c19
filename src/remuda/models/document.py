"""The YAML of models as values, with every text as it was written. Pure."""

import math
from typing import Final

import yaml
from yaml.nodes import ScalarNode

from remuda.core import yaml_tree
from remuda.core.yaml_tree import Text, Value, YamlLimits

# Parts are read in 50 ms, on the event loop.
LIMITS: Final = YamlLimits(bytes=1 << 20, parts=5000, depth=32)
NUMBER_CHARS_MAX: Final = 64  # Reading a number takes time by the square of its length.

_NUMBERS: Final = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool"))
_RESOLVER: Final = yaml.resolver.Resolver()
_CONSTRUCTOR: Final = yaml.constructor.SafeConstructor()


class Plain(str):
    """A text without quotes, which stands for a number or a truth value where no text is asked for."""

    __slots__ = ("meant",)

    meant: int | float | bool


def parse(text: str) -> Value:
    """What the document says. Invalid, naming the line where there is one, for what cannot be read."""
    return yaml_tree.values(text, LIMITS, _scalar)


def _scalar(text: Text) -> str | None:
    if text.null:
        return None
    if not text.plain or len(text.value) > NUMBER_CHARS_MAX:
        return text.value
    tag = _RESOLVER.resolve(ScalarNode, text.value, (True, False))  # type: ignore[no-untyped-call]
    if tag not in _NUMBERS:
        return text.value
    meant = _CONSTRUCTOR.construct_object(ScalarNode(tag, text.value))
    if not math.isfinite(meant):
        return text.value
    plain = Plain(text.value)
    plain.meant = meant
    return plain
