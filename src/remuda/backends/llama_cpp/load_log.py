"""Why a load failed, found in what the engine logged. Pure."""

import re

_ERROR = re.compile(r"^[\d.]+ E +(?P<text>.*)$")
_FATAL = re.compile(r"GGML_ASSERT|GGML_ABORT|terminate called|what\(\):|CUDA error|Error:")
_ECHOES = ("failed to load model", "model loading error", "trying to fit params")
_WRONG_HEADER = re.compile(r"invalid magic characters: .*")  # Followed by the first bytes of the file.
_LINES_MAX = 5
_LINE_LENGTH_MAX = 500


def reason_in(log: str) -> str:
    """The lines that tell most, joined, without those that only repeat that it failed; perhaps none."""
    told: list[str] = []
    for line in log.splitlines():
        error = _ERROR.match(line)
        text = " ".join((error["text"] if error else line).split())[:_LINE_LENGTH_MAX]
        if (error and not _is_echo(text)) or _FATAL.search(text):
            told.append(_WRONG_HEADER.sub("not a GGUF file (wrong header)", text))
    return "; ".join(dict.fromkeys(told[-_LINES_MAX:]))


def _is_echo(text: str) -> bool:
    return any(echo in text for echo in _ECHOES) and "error loading model" not in text
