"""What Ollama's requests say beside their text: how to sample, in which format to answer, whether to think,
and how long the model is to stay. Pure.
"""

from datetime import timedelta
from typing import Any, Final

from msgspec import Raw, Struct

from remuda.gateway.inference.body_errors import InvalidField
from remuda.inference.requests import (
    STOPS_MAX,
    Factor,
    JsonSchema,
    Penalty,
    ResponseFormat,
    Share,
    Temperature,
)
from remuda.models import keep_alive as keeping

Figure = int | float  # Some clients write 8192.0 for a whole number.
_INT_MAX: Final = (1 << 31) - 1
_SEED_MAX: Final = 1 << 62
_WHOLE: Final = {  # Ours, by Ollama's names, each with the least and the greatest.
    "top_k": ("top_k", -1, _INT_MAX),
    "repeat_last_n": ("repeat_last_n", -1, _INT_MAX),
    "num_keep": ("n_keep", -1, _INT_MAX),
    "seed": ("seed", -_SEED_MAX, _SEED_MAX),
    "mirostat": ("mirostat", 0, 2),
}
_SAME: Final = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "tfs_z",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "mirostat_tau",
    "mirostat_eta",
)


class Options(Struct, kw_only=True):
    """`options`. Those that Ollama has for a model's load are not read: here its configuration says them."""

    num_predict: Figure | None = None
    top_k: Figure | None = None
    repeat_last_n: Figure | None = None
    num_keep: Figure | None = None
    seed: Figure | None = None
    mirostat: Figure | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    tfs_z: Factor | None = None
    repeat_penalty: Factor | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    mirostat_tau: Factor | None = None
    mirostat_eta: Share | None = None
    stop: str | list[str] | None = None


def sampling(options: Options | None) -> dict[str, Any]:
    """The same as members of a request in OpenAI's terms."""
    if options is None:
        return {}
    said = {name: value for name in _SAME if (value := getattr(options, name)) is not None}
    for name, (ours, least, most) in _WHOLE.items():
        if (value := getattr(options, name)) is not None:
            said[ours] = _whole(value, name, least, most)
    if options.num_predict is not None:
        limit = _whole(options.num_predict, "num_predict", -_INT_MAX, _INT_MAX)
        said |= {"max_tokens": limit} if limit > 0 else {}  # Else there is none.
    if options.stop:
        said["stop"] = _stops(options.stop)
    return said


def _whole(value: Figure, name: str, least: int, most: int) -> int:
    place = f"options.{name}"
    if value != int(value):
        raise InvalidField(f"{place} must be a whole number, without a fraction", place)
    if not least <= value <= most:
        raise InvalidField(f"{place} must be from {least} to {most}", place)
    return int(value)


def _stops(stop: str | list[str]) -> str | list[str]:
    if isinstance(stop, list) and len(stop) > STOPS_MAX:
        raise InvalidField(f"options.stop must have at most {STOPS_MAX} entries", "options.stop")
    if "" in stop and isinstance(stop, list):
        place = f"options.stop[{stop.index('')}]"
        raise InvalidField(f"{place} must not be empty", place)
    return stop


_EXPECTED: Final = 'format must be "json" or a JSON schema'


def response_format(format: Raw) -> ResponseFormat | None:
    """`format`: the word `json`, a schema, or nothing."""
    written = bytes(format).strip()
    if written in (b"null", b'""'):
        return None
    if written == b'"json"':
        return ResponseFormat("json_object")
    if not written.startswith(b"{"):
        raise InvalidField(f"{_EXPECTED}, not {written[:40].decode('utf-8', 'replace')}", "format")
    return ResponseFormat("json_schema", JsonSchema("answer", format))


_EFFORTS: Final = ("low", "medium", "high")


def thinking(think: bool | str | None) -> dict[str, Any]:
    """`think` as members of a chat: what the model's template is given, and for how long it is to think."""
    if think is None:
        return {}
    if isinstance(think, str) and think not in _EFFORTS:
        words = f"think must be true, false or one of {', '.join(_EFFORTS)}, not {think[:40]!r}"
        raise InvalidField(words, "think")
    enabled = {"metadata": {"enable_thinking": "false" if think is False else "true"}}
    return enabled | ({"reasoning_effort": think} if isinstance(think, str) else {})


def keep_alive(value: Figure | str | None) -> timedelta | None:
    """Seconds, or a duration as Go writes it; less than nothing is for ever. None: nothing is said."""
    if value is None:
        return None
    text = value if isinstance(value, str) else ""
    try:
        return _span(float(value)) if not text else _parsed(text.strip())
    except ValueError:
        raise InvalidField(
            f"keep_alive cannot be {str(value)[:40]!r}: use seconds, a duration such as 5m, or -1 for ever",
            "keep_alive",
        ) from None


def _parsed(text: str) -> timedelta:
    try:
        return _span(float(text))
    except ValueError:
        pass
    if text.startswith("-"):
        keeping.parse(text[1:])
        return keeping.FOR_EVER
    return keeping.parse(text)


def _span(seconds: float) -> timedelta:
    if seconds < 0:
        return keeping.FOR_EVER
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        return keeping.FOR_EVER
