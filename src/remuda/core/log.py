"""structlog set-up, and the redaction that every line passes on its way out, ours and libraries' alike.

Context is bound by `structlog.contextvars`. Redaction is the second line of defence: secrets are typed
SecretStr and not handed to the log in the first place.
"""

import logging
import re
import sys
from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from typing import Final, Literal, TextIO

import structlog
from pydantic import SecretBytes, SecretStr
from structlog.typing import EventDict, Processor, WrappedLogger

from remuda.core.log_sentences import sentence

MASK: Final = "***"

_SECRET_WORDS: Final = frozenset(
    {
        "token",
        "seed",
        "jwt",
        "password",
        "passwd",
        "secret",
        "key",
        "authorization",
        "cookie",
        "credential",
        "credentials",
        "creds",
    }
)
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SECRET_TEXTS: Final = (
    (re.compile(r"(?<=://)[^/?#\s'\"]*@"), f"{MASK}@"),
    (re.compile(r"\b(bearer|basic)\s+[^\s'\"]+", re.IGNORECASE), rf"\1 {MASK}"),
    (re.compile(r"(?<=[?&])((?:\w*_)?(?:token|key|jwt|seed|secret|password)=)[^&#\s'\"]+"), rf"\1{MASK}"),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), MASK),  # A JWT.
    (re.compile(r"\bS[ACNOUX][A-Z2-7]{56}\b"), MASK),  # An nkey seed.
    (re.compile(r"\brmd_[\w-]{16,}"), MASK),  # One of our API keys.
)
_COLORS: Final = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
_PLAIN: Final = "\x1b[0m"
_LEAVES_MAX: Final = 200  # Of one value: what is larger is no log line.
# Their everyday news are not ours.
_QUIET: Final = ("aiohttp", "httpx", "httpcore", "nats", "asyncio", "uvicorn", "alembic")


def configure(
    level: str = "info",
    format: Literal["auto", "console", "json"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Send structlog's and the standard library's events of at least `level` to `stream` (standard error)."""
    out = sys.stderr if stream is None else stream
    threshold = logging.getLevelNamesMapping()[level.upper()]
    rendered: list[Processor] = [redact, _renderer(format, out)]
    structlog.configure(
        processors=[*_gathered(), *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_: _Printer(out),
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_gathered(),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    logging.basicConfig(level=threshold, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))


class _Printer(structlog.WriteLogger):
    """What cannot be written, on a full disk or to a reader that left, is lost, and the caller goes on."""

    def msg(self, message: str) -> None:
        try:  # noqa: SIM105 - suppress() costs as much as a line does.
            super().msg(message)
        except (OSError, ValueError):  # The latter: the stream is closed.
            pass

    debug = info = warning = error = critical = exception = msg


def masked(text: str) -> str:
    """The text without what looks like a secret: URL credentials, bearer tokens, JWTs, seeds, keys."""
    for pattern, instead in _SECRET_TEXTS:
        text = pattern.sub(instead, text)
    return text


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The last processor before rendering: exceptions are text by now, and are cleaned like any other."""
    return {name: _clean(name, value) for name, value in event.items()}


def _gathered() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]


def _renderer(style: str, out: TextIO) -> Processor:
    if style == "console" or (style == "auto" and out.isatty()):
        return _Console(colors=out.isatty())
    return structlog.processors.JSONRenderer()


class _Console:
    """Lines for people: local time, how bad it is, and a sentence."""

    def __init__(self, *, colors: bool) -> None:
        self._colors = colors

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> str:
        details = dict(event)
        at, level = str(details.pop("timestamp", "")), str(details.pop("level", ""))
        text = sentence(str(details.pop("event", "")), details)
        shown = f"{_COLORS.get(level, '')}{level}{_PLAIN}" if self._colors else level
        return f"{_local(at)} {shown}: {text}"


def _local(timestamp: str) -> str:
    """The time of day here."""
    try:
        return datetime.fromisoformat(timestamp).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return timestamp


def _clean(name: str, value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value  # `tokens=12` and `key=None` give nothing away.
    if isinstance(value, SecretStr | SecretBytes) or names_secret(name):
        return MASK
    if isinstance(value, Mapping):
        return {str(key): _clean(str(key), item) for key, item in list(value.items())[:_LEAVES_MAX]}
    if isinstance(value, Sequence | Set) and not isinstance(value, str | bytes | bytearray):
        return [_clean("", item) for item in list(value)[:_LEAVES_MAX]]
    return masked(str(value))


def names_secret(name: str) -> bool:
    """Whether a field of this name is masked whatever it holds."""
    return any(word.lower() in _SECRET_WORDS for word in _WORDS.findall(name))
