"""`remuda.yaml`: how a backend that speaks HTTP is started and asked for its health. Pure.

docs/guide/http-backends.md describes it, with examples. Placeholders in its texts are checked when they
are read, not when they are used.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from remuda.core import durations
from remuda.core.errors import Invalid
from remuda.core.field_errors import field_error
from remuda.core.yaml_tree import YamlLimits, values
from remuda.worker.processes.model import Protocol

PORT: Final = "port"
OPTIONS: Final = "options"
KNOWN: Final = (PORT, "model_path", "model_name", "context_size", "parallel", OPTIONS)

_TOKEN: Final = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}|[{}]|[^{}]+")
_PORT_LATER: Final = "{port}"  # How a recipe writes the port, which is known only when the process starts.


@dataclass(frozen=True, slots=True)
class Placeholder:
    name: str


@dataclass(frozen=True, slots=True)
class PlaceholderText:
    parts: tuple[str | Placeholder, ...]

    @classmethod
    def parse(cls, text: str) -> "PlaceholderText":
        """ValueError, in words for its author, for unknown placeholders and lone braces."""
        return cls(tuple(_part(match) for match in _TOKEN.finditer(text)))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(part.name for part in self.parts if isinstance(part, Placeholder))

    def filled(self, values: Mapping[str, str]) -> str:
        """The text as a recipe wants it: with these values, and the port still open."""
        return "".join(self._piece(part, values) for part in self.parts)

    def _piece(self, part: str | Placeholder, values: Mapping[str, str]) -> str:
        if isinstance(part, Placeholder):
            return _PORT_LATER if part.name == PORT else plain(values[part.name])
        return plain(part)


def plain(text: str) -> str:
    """`text`, if a recipe leaves it as it is and a process can be given it. Invalid otherwise."""
    if _PORT_LATER in text:
        raise Invalid(f"{text[:80]!r} cannot be passed on: {_PORT_LATER} in it would become the port")
    if "\0" in text:
        raise Invalid(f"{text[:80]!r} cannot be passed on: it holds a NUL character")
    return text


def _part(match: re.Match[str]) -> str | Placeholder:
    token = match[0]
    if token in ("{{", "}}"):
        return token[0]
    if token in ("{", "}"):
        raise ValueError(f"a single {token} has no meaning; write {token}{token} for a brace")
    if match[1] is None:
        return token
    if match[1] not in KNOWN:
        known = " ".join(f"{{{name}}}" for name in KNOWN)
        raise ValueError(f"there is no placeholder {token}; use {known}, and {{{{ for a brace")
    return Placeholder(match[1])


FILE_NAME: Final = "remuda.yaml"
LIMITS: Final = YamlLimits(bytes=64 << 10, parts=2000, depth=4)
START_LIMIT_MAX: Final = timedelta(hours=24)

_ITEMS_MAX: Final = 256
_COMPLAINTS_MAX: Final = 3
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH: Final = re.compile(r"/[!-~]*")
_ANY_ADDRESS: Final = ("0.0.0.0", "[::]")


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments that belong together: `optional` ones are left out when a placeholder stands for nothing."""

    templates: tuple[PlaceholderText, ...]
    optional: bool = False


def _template(value: object) -> PlaceholderText:
    if isinstance(value, PlaceholderText):
        return value
    if not isinstance(value, str):
        raise ValueError("must be text")
    if "\0" in value:
        raise ValueError("contains a NUL character")
    if any(address in value for address in _ANY_ADDRESS):
        raise ValueError("must not listen on all addresses: only the worker calls it, on 127.0.0.1")
    return PlaceholderText.parse(value)


def _arguments(value: object) -> Arguments:
    if isinstance(value, Arguments):
        return value
    grouped = isinstance(value, list)
    templates = tuple(_template(item) for item in (value if isinstance(value, list) else [value]))
    if not templates:
        raise ValueError("must not be an empty list")
    if any(OPTIONS in template.names and (grouped or len(template.parts) > 1) for template in templates):
        raise ValueError("{options} stands for several arguments of its own, so it stands alone")
    return Arguments(templates, optional=grouped)


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError("is not a valid name of an environment variable")
    return name


def _env_value(template: PlaceholderText) -> PlaceholderText:
    if OPTIONS in template.names:
        raise ValueError("{options} stands for arguments of the command only")
    return template


def _path(path: str) -> str:
    if not _PATH.fullmatch(path):
        raise ValueError("must be a path such as /health")
    return path


def _span(value: object) -> timedelta:
    span = value if isinstance(value, timedelta) else durations.parse(str(value))
    if not timedelta(0) < span <= START_LIMIT_MAX:
        raise ValueError("must be more than 0 and at most 24h")
    return span


TemplateText = Annotated[PlaceholderText, BeforeValidator(_template)]


TemplateWords = Annotated[
    tuple[Annotated[Arguments, BeforeValidator(_arguments)], ...], Field(max_length=_ITEMS_MAX)
]


class BackendManifest(BaseModel):
    """A `remuda.yaml` that can be used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: Protocol
    command: TemplateWords = ()
    check: TemplateWords = ()  # How it is started without a model, to see that it works.
    env: Annotated[
        Mapping[
            Annotated[str, AfterValidator(_variable)], Annotated[TemplateText, AfterValidator(_env_value)]
        ],
        Field(max_length=_ITEMS_MAX),
    ] = {}
    health: Annotated[str, AfterValidator(_path)] = "/health"
    # Longer than for gRPC: it loads its model before it is healthy.
    start_limit: Annotated[timedelta, BeforeValidator(_span)] = timedelta(minutes=10)

    @model_validator(mode="after")
    def _fits_its_protocol(self) -> "BackendManifest":
        if self.protocol is Protocol.GRPC:
            if self.model_fields_set != {"protocol"}:
                raise ValueError("protocol grpc takes no other fields: its run.sh is started")
            return self
        self._require_startable("command", self.command)
        if self.check:
            self._require_startable("check", self.check)
            others = {name for part in self.check for template in part.templates for name in template.names}
            if foreign := sorted(others - {PORT}):
                raise ValueError(f"check starts it without a model, so it cannot use {{{foreign[0]}}}")
        return self

    def _require_startable(self, field: str, words: tuple[Arguments, ...]) -> None:
        if not words or words[0].optional or not words[0].templates[0].parts:
            raise ValueError(f"{field} must name the program to start, and then its arguments")
        everywhere = [part for arguments in words for part in arguments.templates]
        if not any(PORT in template.names for template in (*everywhere, *self.env.values())):
            raise ValueError(f"{{port}} must appear in {field} or env, or the server does not learn its port")


def parse_manifest(content: bytes, source: str = FILE_NAME) -> BackendManifest:
    """The manifest in `content`. Invalid, naming `source` and the field, when it cannot be used."""
    try:
        # Every text stays as written: 1.10 and `off` are arguments, not numbers and booleans.
        document = values(content, LIMITS, lambda text: text.value)
        if not isinstance(document, dict):
            raise ValueError("it must be a mapping with the field protocol")
        return BackendManifest.model_validate(document)
    except ValidationError as error:
        complaints = [field_error(item) for item in error.errors(include_url=False)]
        raise Invalid(f"{source}: {'; '.join(complaints[:_COMPLAINTS_MAX])}") from None
    except (Invalid, ValueError) as error:
        raise Invalid(f"{source}: {error}") from None
