"""structlog set-up, the redaction that every line passes on its way out, ours and libraries' alike, and log
events as sentences, for a terminal; events that are not in the table are spelled out.

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

SENTENCES: Final[Mapping[str, str]] = {
    "abandoned_replica_not_stopped": "an abandoned replica could not be stopped",
    "backend_broke_off": "a backend closed its connection in the middle of an answer",
    "backend_left_behind": "a backend process could not be stopped and is left behind",
    "backend_refused_connection": "a backend refused a connection",
    "backends_not_listed": "a node did not list its backends",
    "builtin_not_refreshed": "a built-in backend could not be updated",
    "bus_connect_failed": "cannot connect to the NATS server",
    "bus_lost": "the connection to the NATS server was lost",
    "bus_message_dropped": "a message from the NATS server was dropped: too many are waiting",
    "bus_permission_refused": "the NATS server denied a permission",
    "bus_rotation_failed": "cannot connect to the NATS server with the new credentials",
    "caller_stalled": "a client stopped reading and was disconnected",
    "changes_not_read": "changes could not be read from the database",
    "child_exited": "a process ended and will be restarted",
    "child_given_up": "a process keeps ending and is not restarted any more",
    "command_failed": "a command from the frontend failed",
    "commands_do_not_arrive": "the frontend's commands do not reach this node",
    "departure_step_failed": "the frontend could not be notified that this worker stops",
    "disconnects_not_heard": "this frontend does not learn when workers disconnect from the bus",
    "download_restarted": "a download has to start over",
    "gallery_address_answers": "a gallery can be read again",
    "gallery_address_failed": "a gallery cannot be read",
    "gallery_copy_unusable": "the kept copy of a gallery cannot be used",
    "hardware_part_failed": "some of this machine's hardware could not be examined",
    "liveness_lost": "the database cannot be written, so heartbeats do not count",
    "heartbeat_failed": "the frontend did not accept a heartbeat",
    "heartbeats_not_written": "heartbeats could not be written to the database",
    "inference_refused": "a request was refused",
    "keys_not_refreshed": "the API keys could not be read again",
    "mirror_skipped": "a registry mirror was skipped",
    "model_file_cut_off": "a model file is incomplete",
    "model_file_refused": "a model file cannot be used",
    "model_not_usable": "a model cannot be used",
    "models_folder_missing": "the models folder is missing",
    "nats_server_said": "the NATS server says",
    "node_cut_off": "a node is cut off from the bus",
    "node_not_on_our_bus": "a node is connected to another bus than this frontend",
    "node_removed": "stopped",
    "parent_gone": "the process that started this one has ended",
    "registration_failed": "could not register with the frontend",
    "registration_is_open": "anyone may join this fleet",
    "replica_forgotten": "a replica is not used any more",
    "replica_suspected": "a replica failed a request and is being checked",
    "replica_out_of_reach": "a replica cannot be reached",
    "reply_missing": "a node did not answer",
    "request_failed": "a request failed because of a bug in Remuda",
    "request_refused": "a request was refused",
    "setting_has_no_effect_yet": "a setting has no effect yet",
    "stop_not_sent": "a worker could not be asked to stop",
    "stopped_at_once": "stopped without waiting for what was running",
    "stray_replica_found": "a model is running that was not asked for",
    "subscription_refused": "the NATS server does not let this worker receive commands",
    "table_not_refreshed": "the list of replicas could not be read again",
    "upgrades_not_checked": "galleries could not be checked for upgrades",
}
_WHY: Final = (
    "reason",
    "error",
    "why",
    "ending",
    "line",
    "warning",
)  # The first of them follows a colon.
_TRACEBACK: Final = "exception"
_FIRST_ATTEMPT: Final = ("attempts", 1)


def sentence(event: str, details: Mapping[str, object]) -> str:
    """One line: what happened, why, what to do about it, and the rest in brackets. A traceback follows it."""
    sentence = SENTENCES.get(event) or (event.replace("_", " ") if event.isidentifier() else event)
    trace = details.get(_TRACEBACK, "")
    rest = {
        name: _printable(value)
        for name, value in details.items()
        if value not in (None, "") and name != _TRACEBACK and (name, value) != _FIRST_ATTEMPT
    }
    hint = rest.pop("hint", "")
    why = next((name for name in _WHY if name in rest), None)
    parts = [sentence[:1].upper() + sentence[1:]]
    if why is not None:
        parts.append(f": {rest.pop(why)}")
    if hint:
        parts.append(f"; {hint}")
    if rest:
        parts.append(f" ({', '.join(_detail(name, value) for name, value in rest.items())})")
    return "".join(parts) + (f"\n{trace}" if trace else "")


def _printable(value: object) -> str:
    """On one line, and without what a terminal would obey: some of it was said by other machines."""
    return "".join(letter if letter.isprintable() else " " for letter in str(value))


def _detail(name: str, value: str) -> str:
    """`restart_in_s` of 1.0 is "restart in 1 s"."""
    if name.endswith("_s"):
        return f"{_words(name.removesuffix('_s'))} {value.removesuffix('.0')} s"
    return f"{_words(name)} {value}"


def _words(name: str) -> str:
    return name.replace("_", " ")


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
