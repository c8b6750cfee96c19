"""How setting values are read from text, and the words that describe the accepted forms."""

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from remuda.core import durations
from remuda.core.errors import Invalid
from remuda.fleet.model import BUDGET_ACCEPTED, model_files_ceiling, ram_ceiling, vram_ceiling
from remuda.wire.nodes import NAME_BYTES_MAX

_PORT_MAX = 65535
_API_PATHS = ("/v1", "/api")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?", re.ASCII)


def _duration(value: object) -> object:
    return durations.parse(value) if isinstance(value, str) else value


def _json(value: object) -> object:
    return json.loads(value) if isinstance(value, str) else value


def _words(value: object) -> object:
    """`a,b`, trimmed; or a JSON list."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return _json(value)
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _labels(value: object) -> object:
    """`k=v,k=v`, trimmed; a pair without key or equals sign is dropped, as peers do. Or a JSON object."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return _json(value)
    pairs = (part.partition("=") for part in value.split(","))
    return {key.strip(): text.strip() for key, equals, text in pairs if key.strip() and equals}


def label_problem(text: str) -> str:
    """Which part of the text is dropped, for people who have just typed it; else empty."""
    if text.lstrip().startswith("{"):
        return ""
    for part in filter(None, map(str.strip, text.split(","))):
        key, equals, _ = part.partition("=")
        if not equals or not key.strip():
            return f"labels are KEY=VALUE pairs; {part[:80]!r} has no {'key' if equals else 'value'}"
    return ""


def _path(value: object) -> object:
    return Path(value).expanduser() if isinstance(value, str) else value


def _budget(value: str) -> str:
    try:
        vram_ceiling(value, 0)
    except Invalid as error:
        raise ValueError(error.message) from None
    return value


def _ram_budget(value: str) -> str:
    try:
        ram_ceiling(value, 0)
    except Invalid as error:
        raise ValueError(error.message) from None
    return value


def _disk_budget(value: str) -> str:
    try:
        model_files_ceiling(value, 0)
    except Invalid as error:
        raise ValueError(error.message) from None
    return value


def base_url(url: str) -> str:
    """Strips /v1 or /api from a frontend's URL."""
    url = url.rstrip("/")
    return next((url.removesuffix(path).rstrip("/") for path in _API_PATHS if url.endswith(path)), url)


def _node_name(value: str) -> str:
    if len(value.encode()) > NAME_BYTES_MAX or not value.isprintable():
        raise ValueError("too long, or with control characters")
    return value


def _host_port(value: str) -> str:
    """A port that is no number would be dropped in silence, and another one used."""
    bracketed, alone = "]:" in value, value.count(":") == 1  # Else it is a host, perhaps an IPv6 address.
    port = value.strip().rpartition(":")[2] if bracketed or alone else ""
    if port and not (port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise ValueError(f"the port must be a number up to {_PORT_MAX}")
    return value


def _variable_names(value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(
                f"{name[:80]!r} is not a variable name: letters, digits and _, optionally ending in *"
            )
    return value


def or_usual(usual: timedelta) -> AfterValidator:
    """Zero, which peers write for "not set", stands for the usual span."""
    return AfterValidator(lambda span: span or usual)


BudgetSetting = Annotated[str, AfterValidator(_budget)]
RamBudgetSetting = Annotated[str, AfterValidator(_ram_budget)]
DiskBudgetSetting = Annotated[str, AfterValidator(_disk_budget)]
Duration = Annotated[timedelta, BeforeValidator(_duration)]


def _storage_url(value: str) -> str:
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc):
        raise ValueError("it is not an http(s) URL without a login")
    return value.rstrip("/")


StorageUrl = Annotated[str, AfterValidator(_storage_url)]
HostPort = Annotated[str, AfterValidator(_host_port)]
FrontendUrl = Annotated[str, AfterValidator(base_url)]
File = Annotated[Path, BeforeValidator(_path)]
NodeName = Annotated[str, AfterValidator(_node_name)]
Port = Annotated[int, Field(ge=0, le=_PORT_MAX)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
VariableNames = Annotated[Words, AfterValidator(_variable_names)]
LabelSetting = Annotated[Mapping[str, str], BeforeValidator(_labels)]
JsonList = Annotated[tuple[Mapping[str, object], ...], BeforeValidator(_json)]

FILE = "a path"
FLAG = "true or false"
VARIABLES = "NAME,NAME or NAME_*"
PORT = "a port from 0 to 65535"
NODE_NAME = f"up to {NAME_BYTES_MAX} bytes of text"
HOST_PORT = "HOST:PORT"
STORAGE_URL = "http(s)://HOST[:PORT]"
JSON = "a JSON list"
BUDGET = BUDGET_ACCEPTED
DISK_BUDGET = BUDGET_ACCEPTED
# What will use a setting that is accepted but has no effect yet.
MODEL_GALLERIES = "workers that install models, which the frontends do"
