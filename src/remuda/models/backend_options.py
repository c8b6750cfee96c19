"""Options of models (`options: ["NAME:VALUE"]`) for the backends that ship with Remuda, whose options are
known here: values that these refuse, and names that have no effect there. Pure."""

import math
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from remuda.core.errors import Invalid
from remuda.core.hints import did_you_mean
from remuda.models.config import GGUF_BACKEND, ModelConfig

_SHOWN_CHARS_MAX: Final = 60
STEP_SECONDS_MAX: Final = 300
_COUNT_MAX: Final = 1 << 31
_STATUS_NAMES: Final = """
CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED UNIMPLEMENTED
RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED
"""
# Other builds of the same program take these words, too.
_LOOSE_FLAGS: Final = frozenset({"on", "off", "yes", "no", "enabled", "disabled", "enable", "disable"})


@dataclass(frozen=True, slots=True)
class _Kind:
    wanted: str
    accepts: Callable[[str], bool]
    doubts: Callable[[str], bool] = lambda _: False  # Only other builds than ours accept it.


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _whole(text: str, least: int, most: int) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and least <= int(text) <= most


def _count(least: int = 0, most: int = _COUNT_MAX) -> _Kind:
    return _Kind(f"a whole number from {least} to {most}", lambda text: _whole(text, least, most))


def _is_end(text: str) -> bool:
    return text in signal.Signals.__members__ or _whole(text, 0, 255)


_FROM_0 = _Kind("a number from 0", lambda text: 0 <= _number(text) < math.inf)
_ANY_NUMBER = _Kind("a number", lambda text: math.isfinite(_number(text)))
_ANY_WHOLE = _Kind("a whole number", lambda text: _whole(text, -_COUNT_MAX, _COUNT_MAX))
_FLAG = _Kind("true or false", lambda text: text.lower() in ("true", "false"))
_LOOSE_FLAG = _Kind(
    "true or false",
    lambda text: text.lower() in ("true", "false", "0", "1") or text.lower() in _LOOSE_FLAGS,
    lambda text: text.lower() in _LOOSE_FLAGS,
)
_WORD = _Kind("a word", lambda text: math.isnan(_number(text)) and text.lower() not in ("true", "false"))
_TEXT = _Kind("any text", lambda _: True)
_STATUS = _Kind("a gRPC status such as UNAVAILABLE", lambda text: text in _STATUS_NAMES.split())
_END = _Kind("an exit code or a signal such as SIGKILL", _is_end)
_SECONDS = _Kind(
    f"a number of seconds from 1 to {STEP_SECONDS_MAX}",
    lambda text: 1 <= _number(text) <= STEP_SECONDS_MAX,
)

_ECHO: Final[Mapping[str, _Kind]] = {
    **dict.fromkeys(("echo_delay_ms", "echo_token_rate", "echo_load_delay_ms"), _FROM_0),
    **dict.fromkeys(("echo_fail_at_token", "echo_crash_at_token", "echo_hang_at_token"), _count()),
    "echo_big_message_bytes": _count(),
    "echo_dim": _count(1, 1 << 16),
    **dict.fromkeys(("echo_hang", "echo_garbage"), _FLAG),
    **dict.fromkeys(("echo_crash", "echo_load_crash"), _END),
    "echo_fail": _STATUS,
    "echo_load_fail": _TEXT,
}
_LLAMA_CPP: Final[Mapping[str, _Kind]] = {
    **dict.fromkeys(("parallel", "n_parallel", "ubatch", "n_ubatch"), _count(1)),
    **dict.fromkeys(("cache_reuse", "n_cache_reuse", "cache_ram", "draft_max", "draft_min"), _ANY_WHOLE),
    **dict.fromkeys(("slot_prompt_similarity", "sps", "draft_p_min"), _ANY_NUMBER),
    **dict.fromkeys(("context_shift", "kv_unified", "unified_kv", "cont_batching", "warmup"), _LOOSE_FLAG),
    **dict.fromkeys(("swa_full", "check_tensors", "fit_params", "use_jinja", "jinja"), _LOOSE_FLAG),
    **dict.fromkeys(("reasoning_format", "pooling", "split_mode"), _WORD),
    "step_seconds": _SECONDS,
}
KNOWN: Final[Mapping[str, Mapping[str, _Kind]]] = {
    "echo": _ECHO,
    GGUF_BACKEND: _LLAMA_CPP,
    f"builtin-{GGUF_BACKEND}": _LLAMA_CPP,
}
"""By the backend that a configuration names; options of all others are their own."""


@dataclass(frozen=True, slots=True)
class _Given:
    field: str
    text: str

    @property
    def name(self) -> str:
        return self.text.partition(":")[0].strip()

    @property
    def value(self) -> str:
        """Empty: as if it were not there."""
        return self.text.partition(":")[2].strip()


def check_options(config: ModelConfig) -> None:
    """Invalid for a value with which the backend would not load the model."""
    known = KNOWN.get(config.backend, {})
    for one in _given(config):
        kind = known.get(one.name)
        if kind is not None and one.value and not kind.accepts(one.value):
            shown = repr(one.value[:_SHOWN_CHARS_MAX])
            message = f"{one.field}: {one.name} of {config.backend} is {kind.wanted}, not {shown}"
            raise Invalid(message, param=one.field)


def option_doubts(config: ModelConfig) -> Iterator[str]:
    """A warning for each option without an effect."""
    known = KNOWN.get(config.backend)
    if known is None:
        return
    for one in _given(config):
        kind, ours = known.get(one.name), f"the {config.backend} that ships with Remuda"
        if ":" not in one.text:
            yield f"{one.field}: {one.name[:_SHOWN_CHARS_MAX]!r} has no effect: options are NAME:VALUE"
        elif kind is None:
            meant = did_you_mean(one.name, known)
            told = f"{one.field}: {ours} has no option {one.name[:_SHOWN_CHARS_MAX]!r}"
            yield f"{told}; {meant}" if meant else told
        elif kind.doubts(one.value):
            yield f"{one.field}: {one.name} is {kind.wanted} for {ours}, which refuses {one.value!r}"


def _given(config: ModelConfig) -> Iterator[_Given]:
    for number, text in enumerate(config.options):
        yield _Given(f"options[{number}]", text)
