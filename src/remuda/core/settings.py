"""Settings with origins: a flag wins over REMUDA_*, that over LOCALAI_* aliases, that over saved values,
that over the config file, that over the default. Whatever cannot be read stops the start and says where it
came from and what would be accepted."""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from remuda.core import durations
from remuda.core.errors import Misconfigured
from remuda.core.field_errors import field_error

ENV_PREFIX = "REMUDA_"


@dataclass(frozen=True, slots=True)
class Setting:
    """What a person needs to know of one setting; the field gives its type and default."""

    help: str
    accepted: str = ""  # The accepted form, for the message when a value cannot be read.
    flag: str = ""  # Without dashes in front; the field's name when empty.
    aliases: tuple[str, ...] = ()  # LocalAI's environment variables of the same meaning.
    hidden: bool = False  # Not among the flags of `--help`; environment and file only.
    no_effect_yet: str = ""  # Accepted and checked, but nothing uses it: what will.


class Settings(BaseModel):
    """Base of the settings of one process: read once, then passed down as values."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, slots=True)
class ResolvedSettings(Generic[S]):
    values: S
    origins: Mapping[str, str]  # Field name to where its value came from, in words.
    given: Mapping[str, object] = field(repr=False)  # Values as they were given; defaults are not among them.


@dataclass(frozen=True, slots=True)
class Described:
    """One setting with its names."""

    field: str
    setting: Setting
    info: FieldInfo

    @property
    def flag(self) -> str:
        return "--" + (self.setting.flag or self.field.replace("_", "-"))

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.field.upper()

    @property
    def secret(self) -> bool:
        return SecretStr in _leaf_types(self.info.annotation)

    @property
    def boolean(self) -> bool:
        return bool in _leaf_types(self.info.annotation)


def described(model: type[Settings]) -> Iterator[Described]:
    for name, info in model.model_fields.items():
        setting = next((part for part in info.metadata if isinstance(part, Setting)), None)
        assert setting is not None, f"{model.__name__}.{name} has no Setting"
        yield Described(name, setting, info)


def resolve(
    model: type[S],
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    saved: Mapping[str, object] | None = None,
    saved_in: str = "",
    file: Mapping[str, object] | None = None,
    file_name: str = "",
) -> ResolvedSettings[S]:
    """Read every setting of `model` from its sources; Misconfigured names each value that does not do."""
    chosen: dict[str, object] = {}
    origins: dict[str, str] = {}
    for item in described(model):
        found = _first(item, flags, environ, saved or {}, saved_in, file or {}, file_name)
        origins[item.field] = "default" if found is None else found[0]
        if found is not None:
            chosen[item.field] = found[1]
    try:
        return ResolvedSettings(model.model_validate(chosen), origins, chosen)
    except ValidationError as error:
        raise Misconfigured(_explain(model, error, origins, chosen)) from None


def as_environment(model: type[Settings], given: Mapping[str, object]) -> Mapping[str, str]:
    """The values that `model` has a setting for, as the variables that hand them to another process."""
    return {item.env: _as_text(given[item.field]) for item in described(model) if item.field in given}


def read_file(path: Path, known: frozenset[str], *, required: bool) -> Mapping[str, object]:
    """The config file's values by field name; unknown keys are refused with the nearest known one."""
    if not path.exists() and not required:
        return {}
    try:
        raw = tomllib.loads(path.read_text())
    except OSError as error:
        raise Misconfigured(f"config file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(f"config file {path} is not valid TOML: {error}") from None
    values = {key.replace("-", "_"): value for key, value in raw.items()}
    for key in values.keys() - known:
        raise Misconfigured(f"config file {path} has an unknown setting {key!r}", hint=_nearest(key, known))
    return values


def unknown_variables(environ: Mapping[str, str], known: frozenset[str]) -> Mapping[str, str]:
    """REMUDA_* variables that no setting reads, each with a hint: most often a slip of the pen."""
    names = frozenset(ENV_PREFIX + field.upper() for field in known)
    strays = (name for name in environ if name.startswith(ENV_PREFIX) and name not in names)
    return {name: _nearest(name, names) for name in sorted(strays)}


def _first(
    item: Described,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    saved: Mapping[str, object],
    saved_in: str,
    file: Mapping[str, object],
    file_name: str,
) -> tuple[str, object] | None:
    if flags.get(item.field) is not None:
        return item.flag, flags[item.field]
    for name in (item.env, *item.setting.aliases):
        if environ.get(name, "") != "":  # Set but empty means not set: nothing opens by being empty.
            return name, environ[name]
    if item.field in saved:
        return saved_in, saved[item.field]
    if item.field in file:
        return f"{item.field} in {file_name}", file[item.field]
    return None


def _explain(
    model: type[Settings], error: ValidationError, origins: Mapping[str, str], chosen: Mapping[str, object]
) -> str:
    by_field = {item.field: item for item in described(model)}
    lines: list[str] = []
    for problem in error.errors(include_url=False, include_input=False):
        if not problem["loc"]:
            lines.append(str(problem["msg"]).removeprefix("Value error, "))
            continue
        item = by_field[str(problem["loc"][0])]
        shown = "" if item.secret else f"={str(chosen.get(item.field, item.info.default))!r}"
        wants = item.setting.accepted or field_error({**problem, "loc": ()}).removeprefix("must be ")
        lines.append(f"{origins[item.field]}{shown} cannot be used; accepted: {wants}")
    return "; ".join(dict.fromkeys(lines))


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _nearest(word: str, known: frozenset[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else "see remuda config check --help"


def _leaf_types(annotation: object) -> set[object]:
    if get_origin(annotation) is Annotated:
        return _leaf_types(get_args(annotation)[0])
    arguments = get_args(annotation)
    return {annotation} if not arguments else {leaf for part in arguments for leaf in _leaf_types(part)}


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting as people see it; a secret only as set or not set."""

    setting: str
    value: str
    origin: str
    note: str


def setting_rows(values: Settings, origins: Mapping[str, str]) -> list[SettingRow]:
    return [
        SettingRow(
            item.field,
            _value_text(getattr(values, item.field), secret=item.secret),
            origins.get(item.field, "default"),
            f"no effect yet: for {item.setting.no_effect_yet}" if item.setting.no_effect_yet else "",
        )
        for item in described(type(values))
    ]


def _value_text(value: object, *, secret: bool) -> str:
    """A value as it would be typed."""
    match value:
        case _ if secret:
            return "set" if isinstance(value, SecretStr) and value.get_secret_value() else "not set"
        case None | "":
            return ""
        case bool():
            return "true" if value else "false"
        case timedelta():
            return durations.render(value)
        case Mapping():
            return ",".join(f"{key}={item}" for key, item in value.items())
        case tuple() | list() if any(isinstance(item, Mapping) for item in value):
            return json.dumps(list(value))
        case tuple():
            return ",".join(str(item) for item in value)
        case _:
            return str(value)
